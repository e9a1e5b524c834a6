"""Show lines that wait for one that is not coming."""

from datetime import timedelta

from lehr.logs import get_logger
from lehr.postgres import Database
from services.telemetry.storage import jobs, lines

_AT_ONCE = 100


async def place_stuck_lines(*, db: Database, patience: timedelta) -> None:
    """Give a place to lines that have waited for ``patience``; a missing one comes after them."""
    async with db.connection() as conn:
        stuck = await lines.stuck_runs(conn, patience=patience, limit=_AT_ONCE)
    for tenant, job_id, run_id in stuck:
        async with db.transaction() as conn:
            await jobs.lock(conn, [(tenant, job_id)])
            await lines.place(conn, tenant, run_id, watermark=lines.EVERY_LINE)
            await jobs.let_lines_through(conn, tenant, run_id)
            await jobs.ring(conn, job_id)
        get_logger().warning("log_has_a_gap", job_id=job_id, run_id=run_id)
