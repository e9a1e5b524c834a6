"""Rows of ``jobs`` and ``runs`` to values and back; callers hold a transaction."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import asyncpg

from lehr.postgres import Connection, Queries
from services.telemetry.domain.errors import JobNotFound, RunNotFound
from services.telemetry.domain.intervals import Intervals
from services.telemetry.domain.owner import Owner
from services.telemetry.domain.series import Run

SQL = Queries.load(Path(__file__).with_name("queries.sql"))

JobKey = tuple[str, str]
"""Tenant and job id."""


async def raise_fence(conn: Connection, owner: Owner, job_id: str, epoch: int) -> int:
    """Raise the fence to at least ``epoch``, lock the job, and return the fence.

    Raises:
        JobNotFound: the job is another project's.
    """
    fence: int | None = await conn.fetchval(
        SQL["raise_fence"], owner.tenant, owner.project, job_id, epoch
    )
    if fence is None:
        raise JobNotFound(job_id)
    return fence


async def add_run(conn: Connection, run: Run) -> bool:
    """Make a run known; False if the run or its epoch is known already."""
    added = await conn.fetchval(
        SQL["add_run"], run.tenant, run.run_id, run.job_id, run.epoch, run.resume_step
    )
    return added is not None


async def run_at(conn: Connection, tenant: str, job_id: str, epoch: int) -> Run | None:
    """Return the run that holds an epoch of a job."""
    row = await conn.fetchrow(SQL["run_at"], tenant, job_id, epoch)
    return None if row is None else _run(row)


async def watermarks(conn: Connection, tenant: str, run_id: str) -> tuple[int, int]:
    """Return up to where reports and lines of a run are stored without a gap.

    Raises:
        RunNotFound: no such run of the tenant.
    """
    row = await conn.fetchrow(SQL["received"], tenant, run_id)
    if row is None:
        raise RunNotFound(run_id)
    reports, lines = Intervals.of(row["reports_received"]), Intervals.of(row["lines_received"])
    return reports.watermark, lines.watermark


async def lock(conn: Connection, keys: Collection[JobKey]) -> None:
    """Lock jobs, in an order that all callers share; unknown ones are passed over."""
    await conn.execute(SQL["lock_jobs"], *_columns(keys))


class Progress(NamedTuple):
    """A run and what has arrived of it."""

    run: Run
    reports: Intervals
    lines: Intervals
    lines_let_through: int
    """Lines up to this number are shown although one before them is missing."""

    @property
    def shown(self) -> Intervals:
        """The numbers of lines that nobody waits for any more."""
        return self.lines.add([(1, self.lines_let_through)] if self.lines_let_through else [])


async def runs_of(conn: Connection, keys: Collection[JobKey]) -> Mapping[tuple[str, str], Progress]:
    """Return every run of these jobs by tenant and run id."""
    rows = await conn.fetch(SQL["runs_of_jobs"], *_columns(keys))
    return {
        (row["tenant"], row["run_id"]): Progress(
            run=_run(row),
            reports=Intervals.of(row["reports_received"]),
            lines=Intervals.of(row["lines_received"]),
            lines_let_through=row["lines_let_through"],
        )
        for row in rows
    }


async def save_reports(conn: Connection, run: Run, received: Intervals) -> None:
    """Remember which reports of a run are stored."""
    await conn.execute(SQL["save_reports"], run.tenant, run.run_id, received.spans)


async def save_lines(conn: Connection, run: Run, received: Intervals) -> None:
    """Remember which lines of a run are stored."""
    await conn.execute(SQL["save_lines"], run.tenant, run.run_id, received.spans)


async def let_lines_through(conn: Connection, tenant: str, run_id: str) -> None:
    """Wait no longer for what is missing before the last line that has come."""
    await conn.execute(SQL["let_lines_through"], tenant, run_id)


async def ring(conn: Connection, job_id: str) -> None:
    """Wake whoever watches the job, at commit."""
    await conn.execute(SQL["ring"], job_id)


def _columns(keys: Collection[JobKey]) -> tuple[list[str], list[str]]:
    ordered = sorted(keys)
    return [tenant for tenant, _ in ordered], [job_id for _, job_id in ordered]


def _run(row: asyncpg.Record) -> Run:
    return Run(
        tenant=row["tenant"],
        run_id=row["run_id"],
        job_id=row["job_id"],
        epoch=row["epoch"],
        resume_step=row["resume_step"],
    )
