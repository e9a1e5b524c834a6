"""From a request and a placement to a lease."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from services.gpu_allocator.domain.gpu import Gpu, GpuState
from services.gpu_allocator.domain.lease import Lease
from services.gpu_allocator.domain.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFunding:
    """A tier that will do, and the running time that is paid for on it."""

    tier: str
    funded_duration: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireGpus:
    """Ask for GPUs of one node; (tenant, job, attempt) is the key of the request."""

    tenant: str
    project: str
    job_id: str
    attempt: int
    run_id: str
    gpu_count: int
    tiers: tuple[TierFunding, ...]
    """In the order in which they are tried."""
    deadline_duration: timedelta | None


def grant(
    request: AcquireGpus, placement: Placement, *, lease_id: str, epoch: int, now: datetime
) -> tuple[Lease, Sequence[Gpu]]:
    """Return the lease and its GPUs, held; ``epoch`` is newer than any that they had."""
    funded = {one.tier: one.funded_duration for one in request.tiers}
    lease = Lease(
        lease_id=lease_id,
        tenant=request.tenant,
        project=request.project,
        job_id=request.job_id,
        attempt=request.attempt,
        run_id=request.run_id,
        epoch=epoch,
        node_id=placement.node_id,
        tier=placement.tier,
        ordinals=tuple(gpu.ordinal for gpu in placement.gpus),
        funded_duration=funded[placement.tier],
        deadline_duration=request.deadline_duration,
        grant_time=now,
    )
    held = [
        replace(gpu, state=GpuState.HELD, lease_id=lease_id, epoch=epoch) for gpu in placement.gpus
    ]
    return lease, held
