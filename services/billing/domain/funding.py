"""How long what is left still pays for."""

from datetime import timedelta

from lehr.money import SECONDS_OF_HOUR, Money, cost_micros
from services.billing.domain.errors import (
    BudgetBelowCharged,
    BudgetBelowSecond,
    DurationBelowBilled,
)
from services.billing.domain.holds import Hold
from services.billing.domain.rating import Bill

SECONDS_MAX = 10 * 365 * 24 * 3600
"""A price of zero funds ten years: a limit, so that instants stay within what databases hold."""


def funded_seconds(
    remaining_micros: int, *, gpus: int, micro_per_hour: int, billed_seconds: int = 0
) -> int:
    """Return the most whole seconds more that cost at most ``remaining_micros``.

    ``billed_seconds`` is what was billed at the price already: amounts are rounded on its whole, so
    a second more may cost a micro more or less than a second alone.
    """
    if remaining_micros <= 0:
        return 0
    if gpus * micro_per_hour == 0:
        return SECONDS_MAX
    # floor(t * price / 3600) <= limit holds up to the last t with t * price < (limit + 1) * 3600.
    limit = cost_micros(billed_seconds, gpus, micro_per_hour) + remaining_micros
    longest = ((limit + 1) * SECONDS_OF_HOUR - 1) // (gpus * micro_per_hour)
    return min(longest - billed_seconds, SECONDS_MAX)


def funding(bill: Bill, hold: Hold) -> dict[str, timedelta]:
    """Return how long a job may still compute on each tier of its hold, that tier alone."""
    remaining = hold.terms.max_cost_micros - bill.total_micros
    gpus = hold.terms.gpu_count
    return {
        tier: timedelta(
            seconds=funded_seconds(
                remaining,
                gpus=gpus,
                micro_per_hour=price,
                billed_seconds=bill.seconds_at(tier=tier, gpu_count=gpus, micro_per_hour=price),
            )
        )
        for tier, price in ((tier, hold.prices[tier]) for tier in hold.terms.tiers)
    }


def check_above(job_id: str, bill: Bill, hold: Hold) -> None:
    """Refuse a hold that allows no more than what the job has had already.

    Else it would take back what earlier holds had allowed, or lead to a run that ends at once.

    Raises:
        BudgetBelowCharged, DurationBelowBilled: the job has cost or run that much already.
        BudgetBelowSecond: what is left pays for no second on any tier.
    """
    terms = hold.terms
    if terms.max_cost_micros <= bill.total_micros:
        raise BudgetBelowCharged(
            job_id,
            max_cost=Money(terms.currency, terms.max_cost_micros),
            charged=Money(terms.currency, bill.total_micros),
        )
    if terms.max_duration is not None and deadline(bill, hold) == timedelta():
        raise DurationBelowBilled(
            job_id, max_duration=terms.max_duration, billed_seconds=bill.billed_seconds
        )
    if not any(funding(bill, hold).values()):
        raise BudgetBelowSecond(
            left=Money(terms.currency, terms.max_cost_micros - bill.total_micros),
            gpu_count=terms.gpu_count,
            prices={tier: Money(terms.currency, hold.prices[tier]) for tier in terms.tiers},
        )


def deadline(bill: Bill, hold: Hold) -> timedelta | None:
    """Return the running time left, over all runs; None for no limit.

    Time that was credited does not count: the user did not have it.
    """
    if hold.terms.max_duration is None:
        return None
    left = hold.terms.max_duration - timedelta(seconds=bill.billed_seconds)
    return max(left, timedelta())
