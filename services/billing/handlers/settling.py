"""The end of a job's money: last charge, and what is left flows back."""

from datetime import timedelta

from lehr import faults
from lehr.errors import PlatformError
from lehr.events import inbox, outbox
from lehr.events.billing import ChargeSettled
from lehr.logs import get_logger
from lehr.postgres import Connection, Database
from services.billing.domain import ledger
from services.billing.domain.commands import Delivery
from services.billing.domain.errors import JobNotFound, LeasesOpen
from services.billing.domain.holds import Hold, Rest, may_settle
from services.billing.domain.job import Job
from services.billing.domain.lease import Lease
from services.billing.domain.rating import rate
from services.billing.handlers.metering import SOURCE, absorb, charge_job
from services.billing.ports import Leases
from services.billing.storage import jobs, usage
from services.billing.storage import ledger as books
from services.billing.storage.sql import now as now_of


async def job_finished(
    tenant: str, job_id: str, rest: Rest, delivery: Delivery, *, db: Database
) -> Job | None:
    """Remember that a job rests; return it if its money may flow back."""
    async with db.transaction() as conn:
        if not await inbox.first_time(conn, delivery.consumer, delivery.event_id):
            return None
        await jobs.save_rest(conn, rest, tenant=tenant, job_id=job_id)
        try:
            job = await jobs.get(conn, tenant=tenant, job_id=job_id, project=None)
        except JobNotFound:
            # Nothing was ever held for it, so nothing can flow back.
            get_logger().warning("finished_job_is_unknown", job_id=job_id)
            return None
    return job if job.open_ordinal is not None else None


async def settle_now(tenant: str, job_id: str, *, db: Database, leases: Leases) -> None:
    """Settle a job of which the scheduler itself says that it rests; again is the same as once.

    Raises:
        JobNotFound: no such job.
        LeasesOpen: it still has leases; it is settled by itself when they are closed.
    """
    async with db.transaction() as conn:
        job = await jobs.lock_known(conn, tenant=tenant, job_id=job_id)
        if job.open_ordinal is None:
            return
        await jobs.declare_rest(conn, job)
    if open_leases := await settle(job, db=db, leases=leases):
        raise LeasesOpen(job_id, len(open_leases))


async def settle_due(
    *, db: Database, leases: Leases, give_up_after: timedelta | None = None
) -> None:
    """Settle every job that rests; with ``give_up_after`` also those whose launch was given up."""
    async with db.connection() as conn:
        due = await jobs.to_settle(conn, give_up_after=give_up_after)
    for job in due:
        await try_to_settle(job, db=db, leases=leases, give_up_after=give_up_after)


async def try_to_settle(
    job: Job, *, db: Database, leases: Leases, give_up_after: timedelta | None = None
) -> None:
    """Settle a job if it may be; a failure is logged, for the next round tries again."""
    try:
        await settle(job, db=db, leases=leases, give_up_after=give_up_after)
    except PlatformError as problem:
        get_logger().warning("settle_postponed", job_id=job.job_id, reason=problem.reason)


async def settle(
    job: Job, *, db: Database, leases: Leases, give_up_after: timedelta | None = None
) -> list[Lease]:
    """Charge a job for the last time and let its money flow back, if it may.

    Its leases are read from their owner first, so that none is missed. Return those that are still
    open and keep the job from being settled.
    """
    heard = await leases.of_job(job.tenant, job.job_id)
    async with db.transaction() as conn:
        job = await jobs.lock_known(conn, tenant=job.tenant, job_id=job.job_id)
        if job.open_ordinal is None:
            return []
        job = await absorb(conn, job, heard)
        known = await usage.of_job(conn, job)
        if still_open := [lease for lease in known if lease.is_open]:
            return still_open
        holds = await jobs.holds_of(conn, job)
        job = await charge_job(conn, job, holds)
        hold = next(one for one in holds if one.ordinal == job.open_ordinal)
        grants = [one.grant_time for one in known if one.hold_ordinal == hold.ordinal]
        if not may_settle(
            hold,
            job.rest,
            last_grant_time=max(grants, default=None),
            now=await now_of(conn),
            give_up_after=give_up_after,
        ):
            return []
        await faults.hit("billing.settle.after_charge")
        await books.lock_accounts(conn, job.tenant)
        job = await release(conn, job, cause="not used")
        await _tell(conn, job, known, holds)
    await faults.hit("billing.settle.after_commit")
    return []


async def release(conn: Connection, job: Job, *, cause: str) -> Job:
    """Let what is set aside and not charged flow back; the accounts are locked."""
    if job.held_micros:
        booking = ledger.release(
            job.tenant, job.job_id, job.held_micros, opening=job.opening_count, cause=cause
        )
        await books.book(conn, booking)
    return job.released()


async def _tell(conn: Connection, job: Job, known: list[Lease], holds: list[Hold]) -> None:
    job = await jobs.save(conn, job)
    bill = rate(known, holds)
    event = ChargeSettled(
        tenant=job.tenant,
        job_id=job.job_id,
        currency_code=holds[-1].terms.currency,
        total_micros=bill.total_micros,
        billed_seconds=bill.billed_seconds,
    )
    await outbox.add(conn, event, sequence=job.version, source=SOURCE)
