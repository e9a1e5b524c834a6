"""Launch, stop and resume jobs: one effect a request, whatever is repeated or lost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lehr import faults
from lehr.errors import FieldViolation, PlatformError
from lehr.ids import derived_id
from services.scheduler.domain.commands import CreateJob, ResumeJob, StopJob
from services.scheduler.domain.errors import JobRefused, NothingToResume, PriceChanged, StaleJob
from services.scheduler.domain.job import Authorization, Job
from services.scheduler.domain.plan import Plan
from services.scheduler.handlers.plans import plan_job, plan_of
from services.scheduler.handlers.saving import add_job, save_job
from services.scheduler.ports import Ports
from services.scheduler.storage import jobs, keys, runs
from services.scheduler.storage.keys import RequestKey
from services.scheduler.storage.sql import now as now_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """The job of a request, and whether an earlier request had made it."""

    job: Job
    is_replay: bool


async def create_job(command: CreateJob, *, ports: Ports) -> Created:
    """Plan, hold the money, queue; a dry run stops before anything is held or stored.

    Raises:
        IdempotencyKeyReused: the key came with another request before.
        JobRefused: the job can never run as it is asked for.
        PriceChanged: the plan shows another price than would be locked.
        ResourceExhausted: the tenant's credit does not cover the authorised cost.
    """
    owner = command.owner
    key = RequestKey(
        tenant=owner.tenant,
        scope="create",
        request_id=command.request_id,
        fingerprint=command.fingerprint,
    )
    if known := await _replay(key, ports=ports):
        return Created(job=known, is_replay=True)
    if command.spec is not None:
        plan = await plan_job(command.spec, owner, ports=ports)
    else:
        plan = await plan_of(command.plan_digest, owner, ports=ports)
        plan.check_prices(await ports.peers.prices(plan.spec.tiers))
    _check_currency(command.authorization, plan)
    if command.dry_run:
        async with ports.db.connection() as conn:
            now = await now_of(conn)
        return Created(job=_new_job(command, plan, now=now), is_replay=False)
    return await _launch(command, plan, key, ports=ports)


async def stop_job(command: StopJob, *, ports: Ports) -> Job:
    """Make the stop durable; its instant is the last billable one. The cycle tells the allocator.

    Raises:
        JobNotFound: no such job.
    """
    owner = command.owner
    async with ports.db.transaction() as conn:
        job = await jobs.lock(conn, owner.tenant, command.job_id, project=owner.project)
        stopped = job.stop(now=await now_of(conn))
        if stopped is job:
            return job
        known = await runs.of_job(conn, owner.tenant, job.job_id)
        await save_job(conn, stopped, run=known[-1] if known else None)
    await faults.hit("scheduler.stop.after_commit")
    return stopped


async def resume_job(command: ResumeJob, *, ports: Ports) -> Job:
    """Take a job back to the queue, with its prices locked and its money held anew.

    Raises:
        JobNotFound: no such job.
        JobStateForbids: it does not rest, or is finished.
        NothingToResume: it has no checkpoint that holds the whole training state.
        FailedPrecondition: NO_CHECKPOINT_VERIFIES; it has some, and none can be read whole.
        IdempotencyKeyReused: the key came with another request before.
    """
    owner = command.owner
    key = RequestKey(
        tenant=owner.tenant,
        scope=command.job_id,
        request_id=command.request_id,
        fingerprint=command.fingerprint,
    )
    async with ports.db.connection() as conn:
        job = await jobs.get(conn, owner.tenant, command.job_id, project=owner.project)
        if await keys.job_id_of(conn, key):
            return job
    job.check_resumable()
    # Before any money is held: a run that finds nothing to continue from would only end again.
    if await ports.peers.resume_step(job.job_id) is None:
        raise NothingToResume(job.job_id, job.state)
    allowed = command.authorization or job.authorization
    await ports.peers.place_hold(
        job.job_id, ordinal=job.hold_ordinal + 1, authorization=allowed, spec=job.spec
    )
    await faults.hit("scheduler.resume.after_hold")
    return await _requeue(job, allowed, key, ports=ports)


async def _replay(key: RequestKey, *, ports: Ports) -> Job | None:
    async with ports.db.connection() as conn:
        job_id = await keys.job_id_of(conn, key)
        return await jobs.get(conn, key.tenant, job_id, project=None) if job_id else None


async def _launch(command: CreateJob, plan: Plan, key: RequestKey, *, ports: Ports) -> Created:
    job_id = _job_id(command)
    async with ports.db.transaction() as conn:
        # Taken before money is held: of two different requests with one key only one may hold any.
        made = await keys.reserve(conn, key)
        if made is not None:
            known = await jobs.get(conn, key.tenant, made, project=None)
            return Created(job=known, is_replay=True)
    try:
        await _hold(command, plan, job_id, ports=ports)
    except PlatformError as refusal:
        if not refusal.retryable:
            async with ports.db.connection() as conn:
                await keys.release(conn, key)
        raise
    await faults.hit("scheduler.create.after_hold")
    async with ports.db.transaction() as conn:
        if not await keys.complete(conn, key, job_id):
            known = await jobs.get(conn, key.tenant, job_id, project=None)
            return Created(job=known, is_replay=True)
        job = _new_job(command, plan, now=await now_of(conn))
        await add_job(conn, job)
    await faults.hit("scheduler.create.after_commit")
    return Created(job=job, is_replay=False)


async def _hold(command: CreateJob, plan: Plan, job_id: str, *, ports: Ports) -> None:
    locked = await ports.peers.place_hold(
        job_id, ordinal=1, authorization=command.authorization, spec=plan.spec
    )
    try:
        plan.check_prices(locked)
    except PriceChanged:
        # Published in this very moment. If this call is lost, billing gives the hold up by itself.
        await ports.peers.settle(job_id)
        raise


async def _requeue(job: Job, allowed: Authorization, key: RequestKey, *, ports: Ports) -> Job:
    async with ports.db.transaction() as conn:
        current = await jobs.lock(conn, job.tenant, job.job_id, project=None)
        if not await keys.complete(conn, key, job.job_id):
            return current
        if current.hold_ordinal != job.hold_ordinal:
            current.check_resumable()
            # Resumed and stopped again meanwhile: the hold that was placed is not the newest.
            raise StaleJob(job.job_id)
        queued = current.resume(authorization=allowed, now=await now_of(conn))
        known = await runs.of_job(conn, job.tenant, job.job_id)
        await save_job(conn, queued, run=known[-1] if known else None)
    return queued


def _job_id(command: CreateJob) -> str:
    return derived_id("job", command.owner.tenant, command.request_id)


def _new_job(command: CreateJob, plan: Plan, *, now: datetime) -> Job:
    return Job(
        job_id=_job_id(command),
        tenant=command.owner.tenant,
        project=command.owner.project,
        principal=command.owner.principal,
        spec=plan.spec,
        plan_digest=plan.plan_digest,
        inputs=plan.inputs,
        total_steps=plan.total_steps,
        authorization=command.authorization,
        create_time=now,
        update_time=now,
        queue_time=now,
        wait_time=now,
    )


def _check_currency(authorization: Authorization, plan: Plan) -> None:
    if authorization.max_cost.currency != plan.currency:
        told = f"must be {plan.currency}, the currency of the prices"
        field = "authorization.max_cost.currency_code"
        raise JobRefused(
            f"{field} {told}",
            fields=[FieldViolation(field=field, description=told)],
            currency=authorization.max_cost.currency,
        )
