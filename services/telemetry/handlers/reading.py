"""Show series and logs, by page and as they come."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from lehr.errors import Unavailable
from lehr.postgres import Database
from services.telemetry.bell import Bell
from services.telemetry.domain.log import LogFilter, StoredLine
from services.telemetry.domain.owner import Owner
from services.telemetry.domain.series import MetricFilter, StoredPoint, whole_steps
from services.telemetry.storage import lines, points

PAGE = 1000
PAGE_MAX = 10_000

PAGE_BYTES = 4 << 20
"""Text of one page of a log; a message of gRPC may have 16 MiB."""

POLL = timedelta(seconds=1)
"""How often a watcher looks without having been woken."""


async def query_metrics(
    owner: Owner,
    job_id: str,
    wanted: MetricFilter,
    *,
    limit: int,
    db: Database,
) -> tuple[list[StoredPoint], bool]:
    """Return points by step, and whether there is more; a page ends with a whole step."""
    limit = _page_size(limit)
    async with db.transaction(isolation="repeatable_read", readonly=True) as conn:
        found = await points.page(conn, owner, job_id, wanted, limit=limit + 1)
        count, has_more = whole_steps([point.step for point in found], limit=limit)
        if count or not has_more:
            return found[:count], has_more
        step = found[0].step
        whole = await points.at_step(conn, owner, job_id, wanted, step=step)
        rest = await points.page(conn, owner, job_id, replace(wanted, after_step=step), limit=1)
        return whole, bool(rest)


async def read_logs(
    owner: Owner, job_id: str, wanted: LogFilter, *, limit: int, db: Database
) -> tuple[list[StoredLine], bool]:
    """Return lines in order, and whether there is more after the last."""
    async with db.connection() as conn:
        return await lines.page(
            conn, owner, job_id, wanted, limit=_page_size(limit), bytes_max=PAGE_BYTES
        )


async def watch_metrics(
    owner: Owner, job_id: str, wanted: MetricFilter, *, db: Database, bell: Bell
) -> AsyncIterator[list[StoredPoint]]:
    """Yield points that count as they come, those that are there first; never ends.

    A reader that is slow holds nothing up: what it has not taken yet is read when it comes for it.
    """
    arrival = 0
    with bell.listening(job_id) as rung:
        while True:
            rung.clear()
            page: list[StoredPoint] = []
            # A reader is not sent away for an outage; it sees nothing for a while.
            with suppress(Unavailable):
                async with db.connection() as conn:
                    page = await points.arrived(
                        conn, owner, job_id, wanted, after_arrival=arrival, limit=PAGE
                    )
            if page:
                arrival = page[-1].arrival
                yield page
            else:
                await _rest(rung)


async def watch_logs(
    owner: Owner, job_id: str, *, after_cursor: int, db: Database, bell: Bell
) -> AsyncIterator[list[StoredLine]]:
    """Yield lines in order as they come, those that are there first; never ends."""
    wanted = LogFilter(after_cursor=after_cursor)
    with bell.listening(job_id) as rung:
        while True:
            rung.clear()
            page: list[StoredLine] = []
            with suppress(Unavailable):
                page, _ = await read_logs(owner, job_id, wanted, limit=PAGE, db=db)
            if page:
                wanted = replace(wanted, after_cursor=page[-1].cursor)
                yield page
            else:
                await _rest(rung)


async def _rest(rung: asyncio.Event) -> None:
    with suppress(TimeoutError):
        # Not wait_for, which on Python 3.11 swallows a cancellation at the same moment.
        async with asyncio.timeout(POLL.total_seconds()):
            await rung.wait()


def _page_size(limit: int) -> int:
    return min(limit, PAGE_MAX) or PAGE
