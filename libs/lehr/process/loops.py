"""Work that a process does again and again."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from time import monotonic

from opentelemetry.trace import SpanKind

from lehr.logs import bind_context, get_logger, metrics
from lehr.rpc.tracing import traced

BACKOFF_MAX = timedelta(seconds=60)


def pause_after(failures: int, *, every: timedelta) -> timedelta:
    """Return how long to wait after a round; doubled by each failure in a row, from 1 s."""
    if failures == 0:
        return every
    doubled = timedelta(seconds=1 << min(failures - 1, 10))
    return max(every, min(doubled, BACKOFF_MAX))


class Loop:
    """Calls a function, waits, and calls it again; a failed round is logged and backed off from."""

    def __init__(
        self, name: str, function: Callable[[], Awaitable[None]], *, every: timedelta
    ) -> None:
        self.name = name
        self._function = function
        self._every = every
        self._woken = asyncio.Event()
        self._log = get_logger()

    def wake(self) -> None:
        """Start the next round now instead of waiting; never two rounds at once."""
        self._woken.set()

    async def run(self) -> None:
        """Go on until cancelled."""
        failures = 0
        while True:
            self._woken.clear()
            failures = 0 if await self._round() else failures + 1
            pause = pause_after(failures, every=self._every).total_seconds()
            if failures:
                await asyncio.sleep(pause)
            else:
                # Not wait_for, which up to Python 3.11 may swallow a cancellation.
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._woken.wait()

    async def _round(self) -> bool:
        began = monotonic()
        with bind_context(loop=self.name), traced(self.name, kind=SpanKind.INTERNAL):
            try:
                await self._function()
                succeeded = True
            except Exception:  # the edge: one bad round must not end the process.
                self._log.exception("loop_round_failed")
                succeeded = False
        metrics.observe("loop_round_seconds", monotonic() - began, loop=self.name)
        metrics.add("loop_rounds", loop=self.name, outcome="done" if succeeded else "failed")
        return succeeded
