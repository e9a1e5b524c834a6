"""Store a job and tell what became of it, in one transaction."""

from __future__ import annotations

from typing import TypeVar

from lehr.events import outbox
from lehr.events.job import (
    JobEvent,
    JobFinished,
    JobQueued,
    JobRunning,
    JobStarting,
    JobStopping,
)
from lehr.logs import metrics
from lehr.postgres import Connection
from services.scheduler.domain.job import RESTING, Job, JobState
from services.scheduler.domain.progress import Progress
from services.scheduler.domain.run import Run
from services.scheduler.storage import jobs, progress

SOURCE = "scheduler"

T = TypeVar("T")


async def add_job(conn: Connection, job: Job) -> None:
    """Store a new job and tell that it is queued."""
    await jobs.insert(conn, job)
    await _tell(conn, job, run=None)


async def save_job(conn: Connection, job: Job, *, run: Run | None = None) -> None:
    """Store the next version of a job and tell of it; ``run`` is its newest one.

    Raises:
        StaleJob: somebody else was faster.
    """
    await jobs.save(conn, job)
    await _tell(conn, job, run=run)
    if job.end_reason is not None:
        metrics.add("jobs_finished", reason=job.end_reason)


async def _tell(conn: Connection, job: Job, *, run: Run | None) -> None:
    known = Progress()
    if job.state in RESTING:
        known = (await progress.of_jobs(conn, job.tenant, [job.job_id])).get(job.job_id, known)
    fact = fact_of(job, run, known)
    await outbox.add(conn, fact, sequence=job.version, source=SOURCE, time=job.update_time)


def fact_of(job: Job, run: Run | None, known: Progress) -> JobEvent:
    """Return the event that tells of a job's present version."""
    common = {
        "tenant": job.tenant,
        "job_id": job.job_id,
        "project": job.project,
        "name": job.spec.name,
        "run_ordinal": run.ordinal if run else 0,
    }
    match job.state:
        case JobState.QUEUED:
            return JobQueued(
                **common,
                tiers=job.spec.tiers,
                gpu_count=job.spec.gpus,
                queue_time=job.queue_time,
                after_end=run.end or "" if run else "",
            )
        case JobState.STARTING:
            return JobStarting(
                **common,
                run_id=_known(run).run_id,
                lease_id=_known(run).lease_id,
                tier=_known(run).tier,
                is_backup=_known(run).tier != job.spec.tier,
            )
        case JobState.RUNNING:
            return JobRunning(
                **common, run_id=_known(run).run_id, start_time=_known(job.start_time)
            )
        case JobState.STOPPING:
            return JobStopping(
                **common,
                run_id=_known(run).run_id,
                lease_id=_known(run).lease_id,
                stop_time=_known(job.stop_time),
                reason="USER_STOPPED",
            )
        case JobState.STOPPED | JobState.SUCCEEDED | JobState.FAILED:
            return JobFinished(
                **common,
                state=job.state,
                end_reason=_known(job.end_reason),
                message=job.state_message,
                finish_time=_known(job.finish_time),
                best_step=known.best_step,
                last_step=known.step or None,
            )


def _known(value: T | None) -> T:
    """Return what a job in this state has; the schema's checks say the same."""
    if value is None:
        raise AssertionError("a job lacks what its state promises")
    return value
