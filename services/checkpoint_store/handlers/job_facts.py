"""What the store does when it hears about a job: a Best to expect, or the end of its runs."""

from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from lehr.errors import NotFound
from lehr.events import inbox
from lehr.events.envelope import Envelope
from lehr.events.job import JobFinished
from lehr.events.run import RunBest
from lehr.logs import get_logger
from lehr.postgres import Connection, Database
from services.checkpoint_store.domain.checkpoint import Job
from services.checkpoint_store.handlers.rules import apply_rules, best_id, owner_of
from services.checkpoint_store.storage import checkpoints, jobs

CURSOR = "scheduler_jobs"


class Scheduler(Protocol):
    """The owner of jobs, who is asked before anything is done about one."""

    async def is_over(self, tenant: str, project: str, job_id: str) -> bool:
        """Return whether the job has no run now and rests or has ended; raise NotFound."""
        ...

    async def finished_since(self, cursor: str) -> tuple[list[tuple[str, str]], str, bool]:
        """Return (tenant, job id) of finished jobs, the next cursor, and whether there is more."""
        ...


async def expect_best(envelope: Envelope[RunBest], *, consumer: str, db: Database) -> None:
    """Shield the step of an announced Best from retention until its loss is known here."""
    event = envelope.data
    async with db.transaction() as conn:
        if await inbox.first_time(conn, consumer, envelope.event_id):
            await jobs.expect_best(
                conn, event.tenant, event.job_id, epoch=event.epoch, step=event.step
            )


async def job_finished(
    envelope: Envelope[JobFinished],
    *,
    consumer: str,
    db: Database,
    scheduler: Scheduler,
    url_lifetime: timedelta,
) -> None:
    """Tidy up after the last run of a job, if that is still the truth."""
    event = envelope.data
    job = await _job_that_is_over(event.tenant, event.job_id, db=db, scheduler=scheduler)
    async with db.transaction() as conn:
        if not await inbox.first_time(conn, consumer, envelope.event_id) or job is None:
            return
        await _tidy(conn, job, url_lifetime=url_lifetime)


async def sweep(*, db: Database, scheduler: Scheduler, url_lifetime: timedelta) -> None:
    """Do what ``job_finished`` does for every job whose event was lost."""
    has_more = True
    while has_more:
        async with db.connection() as conn:
            cursor = await jobs.cursor(conn, CURSOR)
        finished, cursor, has_more = await scheduler.finished_since(cursor)
        for tenant, job_id in finished:
            try:
                job = await _job_that_is_over(tenant, job_id, db=db, scheduler=scheduler)
            except NotFound:
                get_logger().warning("finished_job_is_unknown", job_id=job_id)
                continue
            if job is not None:
                async with db.transaction() as conn:
                    await _tidy(conn, job, url_lifetime=url_lifetime)
        async with db.connection() as conn:
            await jobs.move_cursor(conn, CURSOR, cursor)


async def _job_that_is_over(
    tenant: str, job_id: str, *, db: Database, scheduler: Scheduler
) -> Job | None:
    """Return the job as it was before its owner said that it is over; None if it goes on."""
    async with db.connection() as conn:
        job = await jobs.of_tenant(conn, tenant, job_id)
    if job is None or not await scheduler.is_over(tenant, job.project, job_id):
        return None
    return job


async def _tidy(conn: Connection, job: Job, *, url_lifetime: timedelta) -> None:
    now = await jobs.lock(conn, owner_of(job), job.job_id)
    if now.fence_epoch != job.fence_epoch:
        # Resumed since its owner was asked: the new run's uploads are not ours to give up.
        return
    await jobs.end_resuming(conn, now)
    await checkpoints.give_up_uploads_of(conn, now, url_lifetime=url_lifetime)
    best = await best_id(conn, now)
    await apply_rules(conn, replace(now, is_resuming=False), best_before=best)
