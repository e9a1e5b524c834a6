"""What the allocator refuses, by name."""

from lehr.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Stale


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


class TierUnknown(InvalidArgument):
    """A tier that deploy/tiers.yaml does not describe."""

    reason = "TIER_UNKNOWN"


class TenantMismatch(PermissionDenied):
    """The request speaks of another tenant than the one that it is made for."""

    reason = "TENANT_MISMATCH"
