"""The SDK for plain scripts: the asyncio client, driven by a loop in a thread of its own.

Every attribute and method of ``AsyncClient`` is there under its name; what is awaited there is
returned here, and what is an async iterator there is an iterator here.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lehr.client.aio import AsyncClient
from lehr.errors import FailedPrecondition


class ClientClosed(FailedPrecondition):
    """The client was closed, here or in another thread."""

    reason = "CLIENT_CLOSED"

    def __init__(self) -> None:
        super().__init__("this client is closed; make another one")


class Client:
    """A connection to the gateway for code without asyncio; usable from several threads.

    ``Client().jobs.get(job_id)`` is ``await AsyncClient().jobs.get(job_id)``. Callbacks, such as
    ``progress`` of an upload, are called in the client's own thread.
    """

    def __init__(
        self,
        address: str | None = None,
        api_key: str | None = None,
        *,
        state_dir: Path | None = None,
    ) -> None:
        """Prepare; connects at the first call.

        Raises:
            NotConnected: address and key are neither given nor found.
        """
        self._loop = _Loop()

        async def connect() -> AsyncClient:
            # The channel belongs to the loop in which it is made.
            return AsyncClient(address, api_key, state_dir=state_dir)

        try:
            self._client: AsyncClient = self._loop.run(connect())
        except BaseException:
            self._loop.end()
            raise

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Sync(getattr(self._client, name), self._loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and end its thread; calls of other threads raise ClientClosed."""
        with suppress(ClientClosed):
            self._loop.run(self._client.close())
        self._loop.end()


class _Loop:
    """A running loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="lehr-client", daemon=True
        )
        self._thread.start()
        # Between the question whether the loop runs and the hand-over of work, nobody ends it.
        self._guard = threading.Lock()
        self._is_over = False

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Wait for ``work``; an exception that ends the waiting, such as Ctrl-C, ends it too.

        Raises:
            ClientClosed: the loop was ended, before or meanwhile.
        """
        with self._guard:
            if self._is_over:
                work.close()
                raise ClientClosed
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ClientClosed from None
        except BaseException:
            future.cancel()
            raise

    def end(self) -> None:
        """Cancel what still runs and end the thread; twice is the same as once."""
        with self._guard:
            if self._is_over:
                return
            self._is_over = True
            asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class _Sync:
    """One kind of thing, such as jobs, with its methods made synchronous."""

    def __init__(self, target: Any, loop: _Loop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._target, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if inspect.isasyncgenfunction(method):
                return self._iterate(method(*args, **kwargs))
            return self._loop.run(method(*args, **kwargs))

        return call

    def _iterate(self, source: AsyncGenerator[Any, None]) -> Iterator[Any]:
        # A step that Ctrl-C cancelled may not have ended yet when the iterator is closed.
        turn = asyncio.Lock()

        async def step() -> tuple[bool, Any]:
            async with turn:
                try:
                    return True, await anext(source)
                except StopAsyncIteration:
                    return False, None

        async def end() -> None:
            async with turn:
                await source.aclose()

        try:
            while True:
                has_item, item = self._loop.run(step())
                if not has_item:
                    return
                yield item
        finally:
            with suppress(ClientClosed):
                self._loop.run(end())
