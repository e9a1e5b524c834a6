"""Runs: begun with a lease, advanced by what the lease says, handed to the agent."""

from __future__ import annotations

from dataclasses import dataclass

from lehr import faults
from lehr.events import inbox
from lehr.logs import get_logger, metrics
from lehr.postgres import Connection
from lehr.training.ends import RunEnd
from services.scheduler.domain.advance import advance, in_words
from services.scheduler.domain.errors import EpochFenced, RunNotLive, RunNotRecorded
from services.scheduler.domain.job import Job, JobState
from services.scheduler.domain.run import Lease, Run, run_id_of
from services.scheduler.handlers.saving import save_job
from services.scheduler.ports import Ports
from services.scheduler.storage import jobs, runs
from services.scheduler.storage.sql import now as now_of

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """An event as it reached a consumer."""

    consumer: str
    event_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What a trainer needs to know of its job."""

    job: Job
    run: Run


async def advance_run(lease: Lease, *, ports: Ports, delivery: Delivery | None = None) -> bool:
    """Take in what is known of a lease: from an event, a sweep, or an answer of the allocator.

    A lease that its job waits for begins the run, whoever brings the news: the answer to the
    request for it may have been lost. Return whether a run has the lease.
    """
    async with ports.db.transaction() as conn:
        if delivery and not await inbox.first_time(conn, delivery.consumer, delivery.event_id):
            return True
        job = await jobs.lock_or_none(conn, lease.tenant, lease.job_id)
        if job is None:
            return False
        # Read under the lock of its job, so that nobody begins or ends it in between.
        run = await runs.of_lease(conn, lease.tenant, lease.lease_id)
        if run is None:
            if job.state is not JobState.QUEUED or job.next_ordinal != lease.attempt:
                return False
            job, run = await _begin(conn, job, lease)
        await _take_in(conn, job, run, lease, ports=ports)
        await faults.hit("scheduler.advance.before_commit")
    return True


async def give_up(job_id: str, tenant: str, end: RunEnd, *, ports: Ports) -> None:
    """Fail a queued job that can never compute again with what was authorised."""
    async with ports.db.transaction() as conn:
        job = await jobs.lock(conn, tenant, job_id, project=None)
        if job.state is not JobState.QUEUED:
            return
        failed = job.finish(JobState.FAILED, end, message=in_words(end, ""), now=await now_of(conn))
        known = await runs.of_job(conn, tenant, job_id)
        await save_job(conn, failed, run=known[-1] if known else None)


async def run_plan(tenant: str, lease_id: str, epoch: int, *, ports: Ports) -> RunPlan:
    """Return what the trainer of a lease needs.

    Raises:
        RunNotRecorded: the lease is too new, ask again.
        EpochFenced: the epoch is not that of the lease.
        RunNotLive: the run has ended.
    """
    async with ports.db.connection() as conn:
        run = await runs.of_lease(conn, tenant, lease_id)
        if run is None:
            raise RunNotRecorded(lease_id)
        if run.epoch != epoch:
            raise EpochFenced(lease_id, epoch, run.epoch)
        if run.end is not None:
            raise RunNotLive(run.run_id, run.end)
        return RunPlan(job=await jobs.get(conn, tenant, run.job_id, project=None), run=run)


async def _take_in(conn: Connection, job: Job, run: Run, lease: Lease, *, ports: Ports) -> None:
    decided = advance(job, run, lease, retry=ports.rules.retry, now=await now_of(conn))
    if decided is None:
        return
    await runs.save(conn, decided.run)
    if decided.job is not None:
        await save_job(conn, decided.job, run=decided.run)
        _log.info(
            "job_advanced",
            job_id=job.job_id,
            run_id=run.run_id,
            state=decided.job.state,
            end=decided.run.end,
        )


async def _begin(conn: Connection, job: Job, lease: Lease) -> tuple[Job, Run]:
    now = await now_of(conn)
    run = Run(
        run_id=run_id_of(job.job_id, lease.attempt),
        job_id=job.job_id,
        tenant=job.tenant,
        project=job.project,
        ordinal=lease.attempt,
        lease_id=lease.lease_id,
        epoch=lease.epoch,
        tier=lease.tier,
        # Below the first version of any lease: what this one says is taken in next.
        lease_version=0,
        create_time=now,
    )
    started = job.start(lease.attempt, message=_on_tier(job, lease.tier), now=now)
    await runs.insert(conn, run)
    await save_job(conn, started, run=run)
    if lease.attempt == 1:
        metrics.observe("queue_seconds", (now - job.create_time).total_seconds(), tier=lease.tier)
    _log.info("run_begun", job_id=job.job_id, run_id=run.run_id, tier=lease.tier)
    return started, run


def _on_tier(job: Job, tier: str) -> str:
    if tier == job.spec.tier:
        return f"starts on {tier}"
    return f"starts on {tier}, a backup of {job.spec.tier}"
