"""Rows of runs."""

from __future__ import annotations

from datetime import datetime

import asyncpg

from lehr.postgres import Connection
from lehr.training.ends import RunEnd
from services.scheduler.domain.errors import StaleJob
from services.scheduler.domain.run import Run
from services.scheduler.storage.sql import SQL


async def insert(conn: Connection, run: Run) -> None:
    """Store a new run."""
    await conn.execute(
        SQL["insert_run"],
        run.run_id,
        run.job_id,
        run.tenant,
        run.project,
        run.ordinal,
        run.lease_id,
        run.epoch,
        run.tier,
        run.lease_version,
        run.create_time,
    )


async def save(conn: Connection, run: Run) -> None:
    """Store what a newer version of the lease said.

    Raises:
        StaleJob: a version as new was stored already, or the run has ended.
    """
    saved = await conn.fetchval(
        SQL["save_run"],
        run.run_id,
        run.lease_version,
        run.end,
        run.end_message,
        run.finish_time,
    )
    if saved is None:
        raise StaleJob(run.job_id)


async def of_lease(conn: Connection, tenant: str, lease_id: str) -> Run | None:
    """Return the run that has a lease."""
    row = await conn.fetchrow(SQL["run_of_lease"], tenant, lease_id)
    return _run(row) if row else None


async def of_job(conn: Connection, tenant: str, job_id: str) -> list[Run]:
    """Return all runs of a job, newest last."""
    return [_run(row) for row in await conn.fetch(SQL["runs_of"], tenant, job_id)]


async def live(conn: Connection, *, older_than: datetime) -> list[Run]:
    """Return the runs that have not ended and were not created just now."""
    return [_run(row) for row in await conn.fetch(SQL["runs_live"], older_than)]


def _run(row: asyncpg.Record) -> Run:
    return Run(
        run_id=row["run_id"],
        job_id=row["job_id"],
        tenant=row["tenant"],
        project=row["project"],
        ordinal=row["ordinal"],
        lease_id=row["lease_id"],
        epoch=row["epoch"],
        tier=row["tier"],
        lease_version=row["lease_version"],
        end=RunEnd(row["end_reason"]) if row["end_reason"] else None,
        end_message=row["end_message"],
        create_time=row["create_time"],
        finish_time=row["finish_time"],
    )
