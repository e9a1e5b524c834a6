"""Why billing refuses something."""

from collections.abc import Mapping
from datetime import timedelta

from lehr.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
)
from lehr.money import Money


class JobNotFound(NotFound):
    """No hold was ever placed for such a job of this tenant and project."""

    reason = "JOB_NOT_FOUND"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id}", job_id=job_id)


class InsufficientCredit(ResourceExhausted):
    """The tenant's free credit does not cover what is to be held."""

    reason = "INSUFFICIENT_CREDIT"

    def __init__(self, *, needed: Money, available: Money) -> None:
        super().__init__(
            f"{needed} must be held and {available} are available; "
            "authorise less, wait for running jobs to end, or top up",
            needed=needed,
            available=available,
        )


class BudgetBelowCharged(FailedPrecondition):
    """The new authorisation is not above what the job has cost already."""

    reason = "BUDGET_BELOW_CHARGED"

    def __init__(self, job_id: str, *, max_cost: Money, charged: Money) -> None:
        super().__init__(
            f"job {job_id} has cost {charged} already, and {max_cost} is authorised in all; "
            "authorise more than it has cost",
            job_id=job_id,
            max_cost=max_cost,
            charged=charged,
        )


class DurationBelowBilled(FailedPrecondition):
    """The new authorisation is not above the running time that was billed already."""

    reason = "DURATION_BELOW_BILLED"

    def __init__(self, job_id: str, *, max_duration: timedelta, billed_seconds: int) -> None:
        super().__init__(
            f"job {job_id} has run for {billed_seconds} s already, and "
            f"{max_duration.total_seconds():g} s are authorised in all; authorise more than it ran",
            job_id=job_id,
            max_duration_seconds=max_duration.total_seconds(),
            billed_seconds=billed_seconds,
        )


class BudgetBelowSecond(FailedPrecondition):
    """What is authorised pays for no second on any of the tiers."""

    reason = "BUDGET_BELOW_SECOND"

    def __init__(self, *, left: Money, gpu_count: int, prices: Mapping[str, Money]) -> None:
        told = ", ".join(f"{tier} at {price}" for tier, price in prices.items())
        super().__init__(
            f"{left} are authorised and not spent, which pays for less than one second of "
            f"{gpu_count} GPUs of {told} an hour each; authorise more",
            left=left,
            tiers=" ".join(prices),
        )


class HoldDiffers(AlreadyExists):
    """A hold of that ordinal applies with other terms."""

    reason = "HOLD_DIFFERS"

    def __init__(self, ordinal: int) -> None:
        super().__init__(
            f"hold {ordinal} of the job was placed with other terms; place the next one",
            ordinal=ordinal,
        )


class HoldSuperseded(FailedPrecondition):
    """A later hold was placed and this one never was."""

    reason = "HOLD_SUPERSEDED"

    def __init__(self, ordinal: int, newest: int) -> None:
        super().__init__(
            f"hold {ordinal} was never placed and hold {newest} is there; place the next one",
            ordinal=ordinal,
            newest=newest,
        )


class NoOpenHold(FailedPrecondition):
    """No money is set aside for the job."""

    reason = "NO_OPEN_HOLD"

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"no money is held for job {job_id}; place a hold before it runs", job_id=job_id
        )


class LeasesOpen(FailedPrecondition):
    """The job still has leases, so its cost can still change."""

    reason = "LEASES_OPEN"

    def __init__(self, job_id: str, count: int) -> None:
        super().__init__(
            f"{count} leases of job {job_id} are not closed; it is settled when they are",
            job_id=job_id,
            count=count,
        )


class TierUnpriced(FailedPrecondition):
    """A tier has no price, so nothing may run on it."""

    reason = "TIER_UNPRICED"

    def __init__(self, tiers: list[str], priced: list[str]) -> None:
        super().__init__(
            f"tier {', '.join(tiers)} has no price; there are prices for {', '.join(priced)}",
            tiers=" ".join(tiers),
        )


class PaymentDiffers(AlreadyExists):
    """The payment id was booked with another amount."""

    reason = "PAYMENT_DIFFERS"

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"payment {request_id[:80]!r} was booked with another amount; use a new request_id",
            request_id=request_id[:80],
        )


class OperatorOnly(PermissionDenied):
    """Only operators may do this."""

    reason = "OPERATOR_ONLY"

    def __init__(self, doing: str) -> None:
        super().__init__(f"only operators may {doing}; use an operator's key")


class LeaseImpossible(InvalidArgument):
    """A lease contradicts itself; a retry would not help."""

    reason = "LEASE_IMPOSSIBLE"

    def __init__(self, lease_id: str, problem: str) -> None:
        super().__init__(f"lease {lease_id} {problem}", lease_id=lease_id)


class RatesRefused(FailedPrecondition):
    """The file of prices cannot be used, or contradicts what is in force."""

    reason = "RATES_REFUSED"
