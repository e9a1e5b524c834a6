"""What a job has cost, up to now."""

from dataclasses import dataclass
from datetime import datetime

from lehr.errors import Unavailable
from lehr.logs import get_logger
from lehr.postgres import Database
from services.billing.domain.job import Job
from services.billing.domain.rating import Bill, max_cost, rate
from services.billing.domain.usage import merged
from services.billing.ports import Leases
from services.billing.storage import jobs, usage
from services.billing.storage.sql import now as now_of

FRESH_SECONDS = 2.0
"""How long the allocator may take before the cost is told by what is known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A bill and what it rests on."""

    job: Job
    bill: Bill
    currency: str
    max_cost_micros: int
    is_provisional: bool
    """A lease is open or money is held, so it may still change."""
    as_of_time: datetime
    """Until when it is proven."""


async def cost_of(
    tenant: str, project: str | None, job_id: str, *, currency: str, db: Database, leases: Leases
) -> Cost:
    """Return the cost of a job; nothing is booked.

    While it runs, time counts up to the last proof of life, so that the cost never falls when
    computing turns out to have ended before it was noticed. The allocator is asked for that; when
    it does not answer, the cost stands still.

    Raises:
        JobNotFound: no such job.
    """
    async with db.transaction(isolation="repeatable_read", readonly=True) as conn:
        job = await jobs.get(conn, tenant=tenant, job_id=job_id, project=project)
        holds = await jobs.holds_of(conn, job)
        known = await usage.of_job(conn, job)
        now = await now_of(conn)
    may_change = job.open_ordinal is not None or any(lease.is_open for lease in known)
    if may_change:
        try:
            heard = await leases.of_job(tenant, job_id, within_seconds=FRESH_SECONDS)
            known = merged(known, heard, holds)
        except Unavailable:
            get_logger().warning("cost_without_allocator", job_id=job_id)
    proofs = [lease.alive_time for lease in known if lease.is_open and lease.end_time is None]
    return Cost(
        job=job,
        bill=rate(known, holds),
        currency=holds[-1].terms.currency if holds else currency,
        max_cost_micros=max_cost(holds),
        is_provisional=may_change,
        as_of_time=min(filter(None, proofs), default=now),
    )
