"""From what is told of leases to what is booked."""

from collections.abc import Iterable, Sequence

from lehr import faults
from lehr.events import inbox, outbox
from lehr.events.billing import ChargePosted
from lehr.logs import get_logger, metrics
from lehr.postgres import Connection, Database
from services.billing.domain.commands import Delivery
from services.billing.domain.errors import LeaseImpossible
from services.billing.domain.holds import Hold
from services.billing.domain.job import Job
from services.billing.domain.lease import Lease
from services.billing.domain.ledger import Posting, charge, postings
from services.billing.domain.rating import Bill, rate
from services.billing.domain.usage import news
from services.billing.storage import jobs, ledger, usage

SOURCE = "billing"


async def meter_lease(lease: Lease, delivery: Delivery, *, db: Database) -> Job | None:
    """Take in what an event tells of a lease; return its job, None if the event was had before."""
    async with db.transaction() as conn:
        if not await inbox.first_time(conn, delivery.consumer, delivery.event_id):
            return None
        job = await _lock(conn, lease)
        job = await absorb(conn, job, [lease])
        await faults.hit("billing.meter.before_commit")
    return job


async def meter_all(leases: Iterable[Lease], *, db: Database) -> None:
    """Take in leases as their owner lists them, one transaction a job."""
    of_job: dict[tuple[str, str], list[Lease]] = {}
    for lease in leases:
        of_job.setdefault((lease.tenant, lease.job_id), []).append(lease)
    for told in of_job.values():
        try:
            async with db.transaction() as conn:
                await absorb(conn, await _lock(conn, told[0]), told)
        except LeaseImpossible as problem:
            # A person must look; the other jobs' money must not wait for that.
            get_logger().error("lease_impossible", job_id=told[0].job_id, problem=str(problem))


async def absorb(conn: Connection, job: Job, heard: Sequence[Lease]) -> Job:
    """Store what is new about a locked job's leases and charge what follows from it."""
    holds = await jobs.holds_of(conn, job)
    known = await usage.of_job(conn, job)
    changed = news(known, heard, holds)
    for lease in changed:
        await usage.save(conn, lease)
    # Charges follow from the rows alone, so where nothing is new nothing is to be charged.
    return await charge_job(conn, job, holds) if changed else job


async def charge_job(conn: Connection, job: Job, holds: Sequence[Hold]) -> Job:
    """Book the difference between what a locked job has cost and what the ledger has of it."""
    bill = rate(await usage.of_job(conn, job), holds)
    found = postings(bill, await ledger.lines_of(conn, job))
    if not found:
        return job
    await ledger.lock_accounts(conn, job.tenant)
    for posting in found:
        job = await _post(conn, job, posting)
    return await _tell(conn, job, bill, holds)


async def _post(conn: Connection, job: Job, posting: Posting) -> Job:
    is_held = job.open_ordinal is not None
    if posting.micros > 0 and not is_held:
        # Settled: what was missed then is the platform's cost. Reconciliation tells of it.
        get_logger().error("charge_after_settle", job_id=job.job_id, micros=posting.micros)
        return job
    if posting.micros:
        await ledger.book(conn, charge(job.tenant, job.job_id, posting, is_held=is_held))
    await ledger.save_line(conn, job, posting)
    seconds = posting.after.billed_seconds - posting.before.billed_seconds
    if seconds > 0:
        metrics.add("charged_seconds", seconds * posting.key.gpu_count, tier=posting.key.tier)
    return job.charged(posting.micros)


async def _tell(conn: Connection, job: Job, bill: Bill, holds: Sequence[Hold]) -> Job:
    job = await jobs.save(conn, job)
    event = ChargePosted(
        tenant=job.tenant,
        job_id=job.job_id,
        currency_code=holds[-1].terms.currency,
        total_micros=bill.total_micros,
        billed_seconds=bill.billed_seconds,
    )
    await outbox.add(conn, event, sequence=job.version, source=SOURCE)
    return job


async def _lock(conn: Connection, lease: Lease) -> Job:
    return await jobs.lock(conn, tenant=lease.tenant, job_id=lease.job_id, project=lease.project)
