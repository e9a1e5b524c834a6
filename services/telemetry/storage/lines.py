"""Rows of ``log_lines`` to values and back; writers hold the lock of the job."""

from collections.abc import Sequence
from datetime import timedelta

from lehr.postgres import Connection
from services.telemetry.domain.log import Line, LogFilter, StoredLine
from services.telemetry.domain.owner import Owner
from services.telemetry.domain.series import Run
from services.telemetry.storage.jobs import SQL

EVERY_LINE = 2**62


async def add(conn: Connection, run: Run, lines: Sequence[Line], *, placed_up_to: int) -> None:
    """Store lines; those up to a number get their place in the log, in the order of numbers.

    What is stored already stays as it is.
    """
    await conn.execute(
        SQL["add_lines"],
        run.tenant,
        run.job_id,
        run.run_id,
        [line.sequence for line in lines],
        [line.time for line in lines],
        [line.level for line in lines],
        [line.text for line in lines],
        placed_up_to,
    )


async def place(conn: Connection, tenant: str, run_id: str, *, watermark: int) -> None:
    """Give waiting lines up to ``watermark`` their places in the job's log, in their order."""
    await conn.execute(SQL["place_lines"], tenant, run_id, watermark)


async def stuck_runs(
    conn: Connection, *, patience: timedelta, limit: int
) -> Sequence[tuple[str, str, str]]:
    """Return tenant, job and run of lines that have waited too long for one before them."""
    rows = await conn.fetch(SQL["runs_with_stuck_lines"], patience, limit)
    return [(row["tenant"], row["job_id"], row["run_id"]) for row in rows]


async def page(
    conn: Connection,
    owner: Owner,
    job_id: str,
    wanted: LogFilter,
    *,
    limit: int,
    bytes_max: int,
) -> tuple[list[StoredLine], bool]:
    """Return lines by place, at most ``limit``, and whether there is more.

    At least one line where there is any, and those that begin within ``bytes_max``.
    """
    rows = await conn.fetch(
        SQL["lines_page"],
        owner.tenant,
        owner.project,
        job_id,
        wanted.after_cursor,
        wanted.from_time,
        wanted.to_time,
        list(wanted.levels),
        limit + 1,
        bytes_max,
    )
    found_count = rows[0]["found_count"] if rows else 0
    lines = [
        StoredLine(
            cursor=row["cursor"],
            run_id=row["run_id"],
            time=row["line_time"],
            level=row["level"],
            text=row["body"],
        )
        for row in rows[:limit]
    ]
    return lines, found_count > len(lines)
