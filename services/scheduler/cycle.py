"""What the scheduler does by itself: place jobs, send stops, sweep, listen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any

from lehr.errors import PlatformError
from lehr.logs import get_logger
from lehr.process import Process
from services.scheduler.changes import Changes
from services.scheduler.handlers.placing import place_jobs, send_stops
from services.scheduler.handlers.sweep import sweep
from services.scheduler.ports import Ports

_log = get_logger(__name__)


def add_loops(
    process: Process, ports: Ports, changes: Changes, *, cycle: timedelta, sweep_every: timedelta
) -> None:
    """Give the process its loops; placing and stopping also run at each change of a job."""
    placing = process.add_loop("place", calm(lambda: place_jobs(ports=ports)), every=cycle)
    # A loop of its own: a stop must not wait behind the placement of a hundred jobs.
    stopping = process.add_loop("stop", calm(lambda: send_stops(ports=ports)), every=cycle)
    process.add_loop("sweep", calm(lambda: sweep(ports=ports)), every=sweep_every)
    process.add_loop("listen", calm(changes.listen), every=timedelta(seconds=1))
    changes.on_any(placing.wake)
    changes.on_any(stopping.wake)


def calm(work: Callable[[], Awaitable[None]]) -> Callable[[], Coroutine[Any, Any, None]]:
    """Take an outage of another part as it is: log it and look again at the usual pace.

    The growing pause after a failed round is for faults of ours; a job must not wait a minute
    because the allocator was restarted.
    """

    async def round_() -> None:
        try:
            await work()
        except PlatformError as outage:
            if not outage.retryable:
                raise
            _log.warning("round_postponed", reason=outage.reason, message=outage.message)

    return round_
