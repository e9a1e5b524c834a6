"""The database's clock, the allocator's heartbeat on it, and the outages that it shows."""

from datetime import datetime, timedelta

from lehr.postgres import Connection
from services.gpu_allocator.domain.expiry import Amnesty, Outage
from services.gpu_allocator.storage.statements import SQL


async def now(conn: Connection) -> datetime:
    """Return the time of leases and money."""
    instant: datetime = await conn.fetchval(SQL["now"])
    return instant


async def lock_heartbeat(conn: Connection) -> tuple[datetime, datetime]:
    """Lock the heartbeat; return the newest one and the time at which the lock was had."""
    row = await conn.fetchrow(SQL["lock_heartbeat"])
    if row is None:
        await conn.execute(SQL["first_heartbeat"])
        return await lock_heartbeat(conn)
    return row["beat_time"], row["now"]


async def save_heartbeat(
    conn: Connection, beat_time: datetime, outage: Outage | None, *, keep: timedelta
) -> None:
    """Store a heartbeat and the outage that it ended; forget outages older than ``keep``."""
    await conn.execute(SQL["save_heartbeat"], beat_time)
    if outage is not None:
        await conn.execute(SQL["add_outage"], outage.begin_time, outage.end_time)
        await conn.execute(SQL["forget_outages"], beat_time - keep)


async def amnesty(conn: Connection) -> tuple[Amnesty, datetime]:
    """Return what does not count as silence, and the time."""
    row = await conn.fetchrow(SQL["heartbeat"])
    outages = tuple(
        Outage(begin_time=one["begin_time"], end_time=one["end_time"])
        for one in await conn.fetch(SQL["outages"])
    )
    if row is None:
        instant = await now(conn)
        return Amnesty(beat_time=instant, outages=outages), instant
    return Amnesty(beat_time=row["beat_time"], outages=outages), row["now"]


async def pending_event_count(conn: Connection) -> int:
    """Return how many events wait for the relay."""
    count: int = await conn.fetchval(SQL["pending_event_count"])
    return count
