"""The port of HTTP."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0
"""What the head of a request may take, and what is thrown away of a body after its answer."""

KEEP_SECONDS = 30
"""How long an idle connection is kept for another request."""


class RestServer:
    """Serves an application inside of a process that has its own loop and signals."""

    def __init__(self, app: ASGIApp, listen: str) -> None:
        self._listen = listen
        self._server = _Server(
            uvicorn.Config(
                app,
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_SECONDS,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Bind and serve; return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        host, _, port = self._listen.rpartition(":")
        family = socket.AF_INET6 if "[" in host else socket.AF_INET
        bound = socket.create_server((host.strip("[]"), int(port)), family=family, backlog=2048)
        bound.setblocking(False)
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]), name="rest")
        await self._server.ready.wait()
        return int(bound.getsockname()[1])

    async def stop(self, *, grace: int) -> None:
        """Give requests in progress ``grace`` seconds, then cut them off."""
        if self._serving is not None:
            self._server.config.timeout_graceful_shutdown = grace
            self._server.should_exit = True
            await self._serving


class _Server(uvicorn.Server):
    """Leaves signals to the process, and tells when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(H11Protocol):
    """Closes connections that do not come to a request; uvicorn 0.54 waits for ever."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def _is_served(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _look(self) -> None:
        if self._is_served():
            self._forget()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _forget(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if not self._is_served():
            self.transport.close()
