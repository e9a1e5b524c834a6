"""What the allocator refuses, by name."""

from lehr.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Stale,
)


class LeaseNotFound(NotFound):
    """No such lease, or not this tenant's."""

    reason = "LEASE_NOT_FOUND"

    def __init__(self, lease_id: str) -> None:
        super().__init__(f"there is no lease {lease_id}", lease_id=lease_id)


class StaleLease(Stale):
    """The lease was changed by somebody else since it was read."""

    reason = "LEASE_STALE"

    def __init__(self, lease_id: str, version: int) -> None:
        super().__init__(
            f"lease {lease_id} is no longer at version {version}; ask again",
            lease_id=lease_id,
            version=version,
        )


class IncarnationFenced(FailedPrecondition):
    """An older start of the agent, or another machine under the same name, speaks for the node."""

    reason = "FENCED"


class AttemptSuperseded(FailedPrecondition):
    """A later attempt of the job has had its lease."""

    reason = "ATTEMPT_SUPERSEDED"

    def __init__(self, job_id: str, attempt: int, newest: int) -> None:
        super().__init__(
            f"job {job_id} has had attempt {newest}, so attempt {attempt} gets no lease any more",
            job_id=job_id,
            attempt=attempt,
            newest_attempt=newest,
        )


class GpuNotFound(NotFound):
    """No such GPU."""

    reason = "GPU_NOT_FOUND"

    def __init__(self, gpu_id: str) -> None:
        super().__init__(
            f"there is no GPU {gpu_id}; list the nodes for the ones there are", gpu_id=gpu_id
        )


class GpuNotQuarantined(FailedPrecondition):
    """The GPU is not in quarantine, so there is nothing to release it from."""

    reason = "GPU_NOT_QUARANTINED"

    def __init__(self, gpu_id: str, have: str) -> None:
        super().__init__(
            f"GPU {gpu_id} is {have}, not QUARANTINED; only a GPU in quarantine is released",
            gpu_id=gpu_id,
            have=have,
        )


class IdempotencyKeyReused(AlreadyExists):
    """The request key belongs to another release."""

    reason = "IDEMPOTENCY_KEY_REUSED"

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"request_id {request_id!r} was used for another release; choose a new one, "
            "or repeat the request exactly as it was",
            request_id=request_id,
        )


class OperatorOnly(PermissionDenied):
    """Only operators may do this."""

    reason = "OPERATOR_ONLY"

    def __init__(self, doing: str) -> None:
        super().__init__(f"only operators may {doing}; use an operator's key")


class TierUnknown(InvalidArgument):
    """A tier that deploy/tiers.yaml does not describe."""

    reason = "TIER_UNKNOWN"


class TenantMismatch(PermissionDenied):
    """The request speaks of another tenant than the one that it is made for."""

    reason = "TENANT_MISMATCH"
