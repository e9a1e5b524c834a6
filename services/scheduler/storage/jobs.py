"""Rows of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg

from lehr.money import Money
from lehr.postgres import Connection
from lehr.training.canonical import spec_json
from lehr.training.ends import RunEnd
from lehr.training.spec import JobSpec
from services.scheduler.domain.errors import JobNotFound, StaleJob
from services.scheduler.domain.job import Authorization, Inputs, Job, JobState
from services.scheduler.domain.turns import Share, Waiting
from services.scheduler.storage.sql import SQL


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job of the queue with what is needed to place it."""

    waiting: Waiting
    next_ordinal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDue:
    """A lease that must be told to end."""

    lease_id: str
    tenant: str
    project: str
    stop_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The state of a job after its last change."""

    job_id: str
    tenant: str
    state: JobState
    end_reason: str
    version: int
    update_time: datetime
    xid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which jobs of a tenant and project are listed, and after which one."""

    tenant: str
    project: str
    states: tuple[JobState, ...] = ()
    name_contains: str = ""
    after: tuple[datetime, str] | None = None


async def insert(conn: Connection, job: Job) -> None:
    """Store a new job."""
    spec, inputs = job.spec, job.inputs
    await conn.execute(
        SQL["insert_job"],
        job.job_id,
        job.tenant,
        job.project,
        job.principal,
        spec.name,
        spec_json(spec),
        job.plan_digest,
        inputs.model_id,
        inputs.model_name,
        inputs.model_revision,
        inputs.dataset_id,
        inputs.dataset_revision,
        inputs.validation_dataset_id,
        inputs.validation_revision,
        job.total_steps,
        list(spec.tiers),
        spec.gpus,
        spec.priority,
        timedelta(seconds=spec.backup_after_seconds),
        job.authorization.max_cost.currency,
        job.authorization.max_cost.micros,
        job.authorization.max_duration,
        job.state,
        job.state_message,
        job.version,
        job.run_ordinal,
        job.fault_count,
        job.hold_ordinal,
        job.create_time,
        job.update_time,
        job.queue_time,
        job.wait_time,
    )


async def save(conn: Connection, job: Job) -> None:
    """Store the next version of a job.

    Raises:
        StaleJob: the stored version is not the one before.
    """
    saved = await conn.fetch(
        SQL["save_job"],
        job.job_id,
        job.tenant,
        job.version,
        job.state,
        job.end_reason,
        job.state_message,
        job.run_ordinal,
        job.fault_count,
        job.hold_ordinal,
        job.authorization.max_cost.currency,
        job.authorization.max_cost.micros,
        job.authorization.max_duration,
        job.update_time,
        job.queue_time,
        job.wait_time,
        job.not_before,
        job.start_time,
        job.stop_time,
        job.finish_time,
    )
    if not saved:
        raise StaleJob(job.job_id)


async def find(conn: Connection, tenant: str, job_id: str, *, project: str | None) -> Job | None:
    """Return a job of the tenant; None stands for any project."""
    row = await conn.fetchrow(SQL["job_of"], tenant, project, job_id)
    return _job(row) if row else None


async def get(conn: Connection, tenant: str, job_id: str, *, project: str | None) -> Job:
    """Return a job of the tenant; raise JobNotFound."""
    job = await find(conn, tenant, job_id, project=project)
    if job is None:
        raise JobNotFound(job_id)
    return job


async def lock(conn: Connection, tenant: str, job_id: str, *, project: str | None) -> Job:
    """Return a job that nobody else changes in this transaction; raise JobNotFound."""
    job = await lock_or_none(conn, tenant, job_id, project=project)
    if job is None:
        raise JobNotFound(job_id)
    return job


async def lock_or_none(
    conn: Connection, tenant: str, job_id: str, *, project: str | None = None
) -> Job | None:
    """Return a job that nobody else changes in this transaction, if there is one."""
    row = await conn.fetchrow(SQL["lock_job"], tenant, project, job_id)
    return _job(row) if row else None


async def listed(conn: Connection, chosen: Filter, *, limit: int) -> list[Job]:
    """Return jobs, newest first."""
    after_time, after_id = chosen.after or (None, "")
    rows = await conn.fetch(
        SQL["jobs_listed"],
        chosen.tenant,
        chosen.project,
        [state.value for state in chosen.states],
        chosen.name_contains,
        after_time,
        after_id,
        limit,
    )
    return [_job(row) for row in rows]


async def waiting(conn: Connection, *, tenant: str | None = None) -> list[QueuedJob]:
    """Return the whole queue, or a tenant's."""
    return [_queued(row) for row in await conn.fetch(SQL["jobs_waiting"], tenant)]


async def shares(conn: Connection, *, tenant: str | None = None) -> dict[tuple[str, str], Share]:
    """Return what each project of all tenants, or of one, has of the GPUs."""
    return {
        (row["tenant"], row["project"]): Share(
            gpu_count=row["gpu_count"], turn_time=row["turn_time"]
        )
        for row in await conn.fetch(SQL["shares"], tenant)
    }


async def stops_due(conn: Connection) -> list[StopDue]:
    """Return the leases of jobs that are stopping."""
    rows = await conn.fetch(SQL["runs_to_stop"])
    return [
        StopDue(
            lease_id=row["lease_id"],
            tenant=row["tenant"],
            project=row["project"],
            stop_time=row["stop_time"],
        )
        for row in rows
    ]


async def changed_since(conn: Connection, *, after: tuple[str, str], limit: int) -> list[Change]:
    """Return the jobs that changed after a place in the order of changes."""
    rows = await conn.fetch(SQL["jobs_changed_since"], *after, limit)
    return [
        Change(
            job_id=row["job_id"],
            tenant=row["tenant"],
            state=JobState(row["state"]),
            end_reason=row["end_reason"] or "",
            version=row["version"],
            update_time=row["update_time"],
            xid=row["change_xid"],
        )
        for row in rows
    ]


def _queued(row: asyncpg.Record) -> QueuedJob:
    return QueuedJob(
        waiting=Waiting(
            job_id=row["job_id"],
            tenant=row["tenant"],
            project=row["project"],
            priority=row["priority"],
            queue_time=row["queue_time"],
            wait_time=row["wait_time"],
            not_before=row["not_before"],
            tiers=tuple(row["tiers"]),
            backup_after=row["backup_after"],
            gpu_count=row["gpu_count"],
        ),
        next_ordinal=row["run_ordinal"] + 1,
    )


def _job(row: asyncpg.Record) -> Job:
    return Job(
        job_id=row["job_id"],
        tenant=row["tenant"],
        project=row["project"],
        principal=row["principal"],
        spec=JobSpec.model_validate_json(row["spec"]),
        plan_digest=row["plan_digest"],
        inputs=Inputs(
            model_id=row["model_id"],
            model_name=row["model_name"],
            model_revision=row["model_revision"],
            dataset_id=row["dataset_id"],
            dataset_revision=row["dataset_revision"],
            validation_dataset_id=row["validation_dataset_id"],
            validation_revision=row["validation_revision"],
        ),
        total_steps=row["total_steps"],
        authorization=Authorization(
            max_cost=Money(currency=row["currency"], micros=row["max_cost_micros"]),
            max_duration=row["max_duration"],
        ),
        state=JobState(row["state"]),
        end_reason=RunEnd(row["end_reason"]) if row["end_reason"] else None,
        state_message=row["state_message"],
        version=row["version"],
        run_ordinal=row["run_ordinal"],
        fault_count=row["fault_count"],
        hold_ordinal=row["hold_ordinal"],
        create_time=row["create_time"],
        update_time=row["update_time"],
        queue_time=row["queue_time"],
        wait_time=row["wait_time"],
        not_before=row["not_before"],
        start_time=row["start_time"],
        stop_time=row["stop_time"],
        finish_time=row["finish_time"],
    )
