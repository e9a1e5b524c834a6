"""How long what is left still pays for."""

from datetime import timedelta

from lehr.money import SECONDS_OF_HOUR, cost_micros
from services.billing.domain.holds import Hold
from services.billing.domain.rating import Bill, LineKey

SECONDS_MAX = 10 * 365 * 24 * 3600
"""A price of zero funds ten years: a limit, so that instants stay within what databases hold."""


def funded_seconds(
    remaining_micros: int, *, gpus: int, micro_per_hour: int, billed_seconds: int = 0
) -> int:
    """Return the most whole seconds more that cost at most ``remaining_micros``.

    ``billed_seconds`` is what the price line has already: amounts are rounded on its whole, so a
    second more may cost a micro more or less than a second alone.
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
    keys = {
        tier: LineKey(hold_ordinal=hold.ordinal, tier=tier, gpu_count=gpus)
        for tier in hold.terms.tiers
    }
    return {
        tier: timedelta(
            seconds=funded_seconds(
                remaining,
                gpus=gpus,
                micro_per_hour=hold.prices[tier],
                billed_seconds=bill.seconds_of(key),
            )
        )
        for tier, key in keys.items()
    }


def deadline(bill: Bill, hold: Hold) -> timedelta | None:
    """Return the running time left, over all runs; None for no limit.

    Time that was credited does not count: the user did not have it.
    """
    if hold.terms.max_duration is None:
        return None
    left = hold.terms.max_duration - timedelta(seconds=bill.billed_seconds)
    return max(left, timedelta())
