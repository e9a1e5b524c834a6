"""What users see of their jobs: the job, its runs, how far it is and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lehr.postgres import Connection
from services.scheduler.domain.job import Job, JobState
from services.scheduler.domain.placement import why_waiting
from services.scheduler.domain.progress import Progress
from services.scheduler.domain.run import Run
from services.scheduler.domain.turns import Waiting, in_turns, position
from services.scheduler.ports import Ports
from services.scheduler.storage import jobs, progress, runs
from services.scheduler.storage.jobs import Filter
from services.scheduler.storage.sql import now as now_of


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job as it is shown."""

    job: Job
    message: str
    progress: Progress
    queue_position: int
    runs: tuple[Run, ...] = ()


async def job_view(tenant: str, job_id: str, *, project: str | None, ports: Ports) -> JobView:
    """Return a job with its runs; raise JobNotFound."""
    async with ports.db.connection() as conn:
        job = await jobs.get(conn, tenant, job_id, project=project)
        (view,) = await _views(conn, tenant, [job], ports=ports)
        return replace(view, runs=tuple(await runs.of_job(conn, tenant, job_id)))


async def jobs_listed(chosen: Filter, *, limit: int, ports: Ports) -> list[JobView]:
    """Return jobs without their runs, newest first."""
    async with ports.db.connection() as conn:
        found = await jobs.listed(conn, chosen, limit=limit)
        return await _views(conn, chosen.tenant, found, ports=ports)


async def _views(
    conn: Connection, tenant: str, found: Sequence[Job], *, ports: Ports
) -> list[JobView]:
    job_ids = [job.job_id for job in found]
    known = await progress.of_jobs(conn, tenant, job_ids)
    now = await now_of(conn)
    order = await _order(conn, tenant, found, now=now)
    return [
        JobView(
            job=job,
            message=_message(job, now=now, ports=ports),
            progress=known.get(job.job_id, Progress(total_steps=job.total_steps)),
            queue_position=position(job.job_id, order),
        )
        for job in found
    ]


async def _order(
    conn: Connection, tenant: str, found: Sequence[Job], *, now: datetime
) -> list[Waiting]:
    """Return the tenant's queue in the order in which it is served, if any of ``found`` waits."""
    if all(job.state is not JobState.QUEUED for job in found):
        return []
    queue = [one.waiting for one in await jobs.waiting(conn, tenant=tenant)]
    return in_turns(queue, await jobs.shares(conn, tenant=tenant), now=now)


def view_of_new(job: Job, *, ports: Ports) -> JobView:
    """Return the view of a job that is not stored, as a dry run answers it."""
    return JobView(
        job=job,
        message=_message(job, now=job.create_time, ports=ports),
        progress=Progress(total_steps=job.total_steps),
        queue_position=0,
    )


def _message(job: Job, *, now: datetime, ports: Ports) -> str:
    if job.state is not JobState.QUEUED:
        return job.state_message
    why = why_waiting(_waiting(job), ports.board.tiers, now=now)
    return f"{job.state_message}; {why}" if job.state_message else why


def _waiting(job: Job) -> Waiting:
    return Waiting(
        job_id=job.job_id,
        tenant=job.tenant,
        project=job.project,
        priority=job.spec.priority,
        queue_time=job.queue_time,
        wait_time=job.wait_time,
        not_before=job.not_before,
        tiers=job.spec.tiers,
        backup_after=timedelta(seconds=job.spec.backup_after_seconds),
        gpu_count=job.spec.gpus,
    )
