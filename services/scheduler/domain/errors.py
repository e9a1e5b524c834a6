"""Why the scheduler says no."""

from __future__ import annotations

from collections.abc import Mapping

from lehr.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Stale,
    Unavailable,
)
from lehr.money import Money


class JobNotFound(NotFound):
    """No such job in this tenant and project."""

    reason = "JOB_NOT_FOUND"

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"there is no job {job_id}; list your jobs for the ones there are", job_id=job_id
        )


class PlanNotFound(NotFound):
    """No such plan in this tenant and project."""

    reason = "PLAN_NOT_FOUND"

    def __init__(self, plan_digest: str) -> None:
        super().__init__(
            f"there is no plan {plan_digest}; plan the job again and launch the digest you get",
            plan_digest=plan_digest,
        )


class PlanExpired(FailedPrecondition):
    """The plan is too old to be launched."""

    reason = "PLAN_EXPIRED"

    def __init__(self, plan_digest: str, expire_time: str) -> None:
        super().__init__(
            f"plan {plan_digest} expired at {expire_time}; plan the job again",
            plan_digest=plan_digest,
            expire_time=expire_time,
        )


class PriceChanged(FailedPrecondition):
    """A plan shows another price than would be locked now."""

    reason = "PRICE_CHANGED"

    def __init__(
        self, plan_digest: str, *, shown: Mapping[str, Money], now: Mapping[str, Money]
    ) -> None:
        told = "; ".join(
            f"{tier} was {shown[tier]} a GPU hour in the plan and is {price}"
            for tier, price in now.items()
        )
        super().__init__(
            f"prices have changed since plan {plan_digest} was made: {told}; plan the job again",
            plan_digest=plan_digest,
            shown=" ".join(f"{tier}={shown[tier]}" for tier in now),
            now=" ".join(f"{tier}={price}" for tier, price in now.items()),
        )


class JobStateForbids(FailedPrecondition):
    """The job's state does not allow the move."""

    reason = "JOB_STATE_FORBIDS"

    def __init__(self, job_id: str, have: str, want: str, *, why: str = "") -> None:
        message = f"job {job_id} is {have}, so it cannot become {want}"
        super().__init__(
            f"{message}; {why}" if why else message, job_id=job_id, have=have, want=want
        )


class NothingToResume(FailedPrecondition):
    """The job has no checkpoint that holds the whole training state."""

    reason = "NOTHING_TO_RESUME"

    def __init__(self, job_id: str, state: str) -> None:
        super().__init__(
            f"job {job_id} is {state} and has no checkpoint to resume from; "
            "create it again as a new job",
            job_id=job_id,
            have=state,
        )


class StaleJob(Stale):
    """Somebody else changed the job in between."""

    reason = "STALE_JOB"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} was changed meanwhile; ask again", job_id=job_id)


class IdempotencyKeyReused(AlreadyExists):
    """The request key belongs to another request."""

    reason = "IDEMPOTENCY_KEY_REUSED"

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"request_id {request_id!r} was used for another request; choose a new one, "
            "or repeat the request exactly as it was",
            request_id=request_id,
        )


class AuthorizationRequired(InvalidArgument):
    """Nothing is launched without saying what may be spent."""

    reason = "AUTHORIZATION_REQUIRED"


class RequestInvalid(InvalidArgument):
    """A field of the request is wrong."""

    reason = "REQUEST_INVALID"


class JobRefused(InvalidArgument):
    """The job can never run as it is asked for."""

    reason = "JOB_REFUSED"


class RunNotRecorded(Unavailable):
    """The lease is not known here yet; it may have been granted this very moment."""

    reason = "RUN_NOT_RECORDED"

    def __init__(self, lease_id: str) -> None:
        super().__init__(
            f"no run is recorded for lease {lease_id} yet; ask again in a moment",
            lease_id=lease_id,
        )


class RunNotLive(FailedPrecondition):
    """The run is over."""

    reason = "RUN_NOT_LIVE"

    def __init__(self, run_id: str, end: str) -> None:
        super().__init__(
            f"run {run_id} is over ({end}); start nothing for it", run_id=run_id, end=end
        )


class EpochFenced(FailedPrecondition):
    """The epoch is not that of the run."""

    reason = "FENCED"

    def __init__(self, lease_id: str, have: int, want: int) -> None:
        super().__init__(
            f"lease {lease_id} has epoch {want}, not {have}; start nothing for it",
            lease_id=lease_id,
            have=have,
            want=want,
        )
