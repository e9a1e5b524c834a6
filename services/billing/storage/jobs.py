"""Rows of jobs and their holds."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import asyncpg

from lehr.errors import Stale
from lehr.postgres import Connection
from services.billing.domain.errors import JobNotFound
from services.billing.domain.holds import Hold, Rest, Terms
from services.billing.domain.job import Job
from services.billing.storage.sql import SQL


async def lock(conn: Connection, *, tenant: str, job_id: str, project: str) -> Job:
    """Take the lock under which all money of a job moves; an unknown job becomes known."""
    await conn.execute(SQL["know_job"], tenant, job_id, project)
    return await lock_known(conn, tenant=tenant, job_id=job_id)


async def lock_known(conn: Connection, *, tenant: str, job_id: str) -> Job:
    """Take the same lock of a job that is there; raise JobNotFound."""
    row = await conn.fetchrow(SQL["lock_job"], tenant, job_id)
    if row is None:
        raise JobNotFound(job_id)
    return _job(row)


async def get(conn: Connection, *, tenant: str, job_id: str, project: str | None) -> Job:
    """Return a job without a lock; raise JobNotFound. Services ask without a project."""
    row = await conn.fetchrow(SQL["job"], tenant, job_id, project)
    if row is None:
        raise JobNotFound(job_id)
    return _job(row)


async def save(conn: Connection, job: Job) -> Job:
    """Store ``job`` as its next version and return that; raise Stale if somebody was faster."""
    version = await conn.fetchval(
        SQL["save_job"],
        job.tenant,
        job.job_id,
        job.version + 1,
        job.open_ordinal,
        job.opening_count,
        job.held_micros,
    )
    if version is None:
        raise Stale(f"job {job.job_id} has changed since it was read", job_id=job.job_id)
    return replace(job, version=version)


async def save_rest(conn: Connection, rest: Rest, *, tenant: str, job_id: str) -> None:
    """Remember what the scheduler said unless it said something newer; skip unknown jobs."""
    await conn.execute(
        SQL["save_rest"], tenant, job_id, rest.version, rest.is_resting, rest.change_time
    )


async def declare_rest(conn: Connection, job: Job) -> None:
    """Remember that the scheduler itself says that the job rests now."""
    await conn.execute(SQL["declare_rest"], job.tenant, job.job_id)


async def to_settle(conn: Connection, *, give_up_after: timedelta | None) -> list[Job]:
    """Return jobs whose money may flow back; with a timeout also those that were given up."""
    return [_job(row) for row in await conn.fetch(SQL["jobs_to_settle"], give_up_after)]


async def holds_of(conn: Connection, job: Job) -> list[Hold]:
    """Return all holds of a job with their locked prices."""
    rows = await conn.fetch(SQL["holds_of_job"], job.tenant, job.job_id)
    return [_hold(row) for row in rows]


async def save_hold(conn: Connection, job: Job, hold: Hold) -> None:
    """Store a hold, new or with other terms; its prices are as they were."""
    await conn.execute(
        SQL["save_hold"],
        job.tenant,
        job.job_id,
        hold.ordinal,
        hold.terms.currency,
        hold.terms.max_cost_micros,
        hold.terms.max_duration,
        hold.terms.gpu_count,
        list(hold.terms.tiers),
        hold.rate_version,
        hold.place_time,
        hold.open_time,
    )


async def forget_prices(conn: Connection, job: Job, ordinal: int) -> None:
    """Drop the prices of a hold that nobody used; before it is saved with others."""
    await conn.execute(SQL["forget_prices"], job.tenant, job.job_id, ordinal)


async def lock_prices(conn: Connection, job: Job, hold: Hold) -> Mapping[str, int]:
    """Lock the prices of the hold's list for its tiers and return them."""
    rows = await conn.fetch(
        SQL["lock_prices"],
        job.tenant,
        job.job_id,
        hold.ordinal,
        hold.rate_version,
        list(hold.terms.tiers),
    )
    return {row["tier"]: row["micro_per_hour"] for row in rows}


def _job(row: asyncpg.Record) -> Job:
    return Job(
        tenant=row["tenant"],
        job_id=row["job_id"],
        project=row["project"],
        version=row["version"],
        open_ordinal=row["open_ordinal"],
        opening_count=row["opening_count"],
        held_micros=row["held_micros"],
        rest=Rest(
            version=row["rest_version"],
            is_resting=row["is_resting"],
            change_time=row["change_time"],
        ),
    )


def _hold(row: asyncpg.Record) -> Hold:
    return Hold(
        ordinal=row["ordinal"],
        terms=Terms(
            currency=row["currency"],
            max_cost_micros=row["max_cost_micros"],
            max_duration=row["max_duration"],
            gpu_count=row["gpu_count"],
            tiers=tuple(row["tiers"]),
        ),
        rate_version=row["rate_version"],
        prices=row["prices"] or {},
        place_time=row["place_time"],
        open_time=row["open_time"],
    )
