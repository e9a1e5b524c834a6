"""Place a hold, and say how long what is left of it pays for."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from lehr import faults
from lehr.errors import Unavailable
from lehr.events import outbox
from lehr.events.billing import HoldPlaced
from lehr.logs import get_logger
from lehr.money import Money
from lehr.postgres import Connection, Database
from services.billing.domain import funding, ledger
from services.billing.domain.commands import PlaceHold
from services.billing.domain.errors import InsufficientCredit, NoOpenHold
from services.billing.domain.funding import check_above
from services.billing.domain.holds import Hold, Placement, decide
from services.billing.domain.job import Job
from services.billing.domain.ledger import Account
from services.billing.domain.rating import rate
from services.billing.domain.usage import merged
from services.billing.handlers import accounts, prices
from services.billing.handlers.accounts import Opening
from services.billing.handlers.metering import SOURCE, absorb, charge_job
from services.billing.handlers.settling import release
from services.billing.ports import Leases
from services.billing.storage import jobs, rates, usage
from services.billing.storage import ledger as books
from services.billing.storage.sql import now as now_of


async def place_hold(
    cmd: PlaceHold, *, db: Database, leases: Leases, opening: Opening
) -> tuple[Hold, Job]:
    """Lock prices and set money aside; again with the same terms, nothing changes.

    A later hold takes the place of the one before: what that has left flows back first. What ran
    under that is asked of the allocator, for a hold must not cut what is not booked yet.

    Raises:
        InsufficientCredit: the free credit does not cover it.
        BudgetBelowCharged, DurationBelowBilled: the job has cost or run that much already.
        BudgetBelowSecond: what is left pays for no second on any tier.
        TierUnpriced: a tier has no price.
        HoldDiffers, HoldSuperseded: the ordinal is taken or passed.
        Unavailable: the allocator does not answer, and the job may have run.
    """
    heard = await leases.of_job(cmd.tenant, cmd.job_id) if cmd.ordinal > 1 else []
    async with db.transaction() as conn:
        job = await jobs.lock(conn, tenant=cmd.tenant, job_id=cmd.job_id, project=cmd.project)
        job = await absorb(conn, job, heard)
        holds = await jobs.holds_of(conn, job)
        known = await usage.of_job(conn, job)
        placement = decide(
            holds,
            cmd.ordinal,
            cmd.terms,
            open_ordinal=job.open_ordinal,
            is_used=any(lease.hold_ordinal == cmd.ordinal for lease in known),
        )
        if placement is Placement.KEEP:
            return next(hold for hold in holds if hold.ordinal == cmd.ordinal), job
        await accounts.lock(conn, cmd.tenant, opening=opening)
        if job.open_ordinal is not None:
            job = await charge_job(conn, job, holds)
            job = await release(conn, job, cause=f"replaced by authorisation {cmd.ordinal}")
        hold = await _lock_prices(conn, job, cmd, holds, placement)
        check_above(job.job_id, rate(known, holds), hold)
        job = await _set_aside(conn, job, hold)
        await faults.hit("billing.place_hold.before_commit")
    await faults.hit("billing.place_hold.after_commit")
    return hold, job


async def get_funding(
    tenant: str, job_id: str, *, db: Database, leases: Leases
) -> tuple[dict[str, timedelta], timedelta | None]:
    """Return how long a job may compute on each of its tiers, and its running time left.

    Raises:
        JobNotFound: no such job.
        NoOpenHold: nothing is held for it.
    """
    try:
        heard = await leases.of_job(tenant, job_id)
    except Unavailable:
        # What is known is enough: the clamp at the charge is exact whatever was missed here.
        get_logger().warning("funding_without_allocator", job_id=job_id)
        heard = []
    async with db.transaction(isolation="repeatable_read", readonly=True) as conn:
        job = await jobs.get(conn, tenant=tenant, job_id=job_id, project=None)
        holds = await jobs.holds_of(conn, job)
        known = await usage.of_job(conn, job)
    hold = next((one for one in holds if one.ordinal == job.open_ordinal), None)
    if hold is None:
        raise NoOpenHold(job_id)
    bill = rate(merged(known, heard, holds), holds)
    return funding.funding(bill, hold), funding.deadline(bill, hold)


async def _lock_prices(
    conn: Connection, job: Job, cmd: PlaceHold, holds: Sequence[Hold], placement: Placement
) -> Hold:
    if placement is Placement.REOPEN:
        hold = next(one for one in holds if one.ordinal == cmd.ordinal)
        hold = replace(hold, open_time=await now_of(conn))
        await jobs.save_hold(conn, job, hold)
        return hold
    await rates.share(conn)
    card, now = await prices.in_force(conn), await now_of(conn)
    prices.check_priced(cmd.terms.tiers, card)
    hold = Hold(
        ordinal=cmd.ordinal,
        terms=cmd.terms,
        rate_version=card.rate_version,
        place_time=now,
        open_time=now,
    )
    await jobs.forget_prices(conn, job, hold.ordinal)
    await jobs.save_hold(conn, job, hold)
    return replace(hold, prices=await jobs.lock_prices(conn, job, hold))


async def _set_aside(conn: Connection, job: Job, hold: Hold) -> Job:
    currency = hold.terms.currency
    charged = sum(one.amount_micros for one in (await books.lines_of(conn, job)).values())
    needed = hold.terms.max_cost_micros - charged
    available = (await books.balances(conn, job.tenant))[Account.CREDIT]
    if available < needed:
        raise InsufficientCredit(
            needed=Money(currency, needed), available=Money(currency, available)
        )
    job = job.opened(hold.ordinal, needed)
    booking = ledger.hold(
        job.tenant, job.job_id, needed, ordinal=hold.ordinal, opening=job.opening_count
    )
    await books.book(conn, booking)
    job = await jobs.save(conn, job)
    event = HoldPlaced(
        tenant=job.tenant, job_id=job.job_id, currency_code=currency, held_micros=needed
    )
    await outbox.add(conn, event, sequence=job.version, source=SOURCE)
    return job
