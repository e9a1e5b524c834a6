"""Whether what leases hold is what GPUs are used for; both are counted on their own."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.gpu_allocator.domain.gpu import Gpu, GpuState
from services.gpu_allocator.domain.lease import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A GPU that a lease holds, from the table with the exclusion constraint."""

    gpu_id: str
    lease_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCheck:
    """The comparison."""

    held_count: int
    used_count: int
    differences: tuple[str, ...]
    """Contradictions in words; they name GPUs and nodes, never a lease or a job."""


def compare(gpus: Sequence[Gpu], leases: Sequence[Lease], holds: Sequence[Hold]) -> HeldCheck:
    """Compare GPUs, open leases and holds of the whole installation, read in one snapshot."""
    used = {gpu.gpu_id for gpu in gpus if gpu.is_unproven}
    held = {hold.gpu_id for hold in holds}
    differences = [f"GPU {gpu_id} is used and no lease holds it" for gpu_id in sorted(used - held)]
    differences += [f"GPU {gpu_id} is held and not used" for gpu_id in sorted(held - used)]
    by_id = {lease.lease_id: lease for lease in leases}
    owners = {hold.gpu_id: hold.lease_id for hold in holds}
    for gpu in gpus:
        if gpu.gpu_id in owners and gpu.lease_id not in {None, owners[gpu.gpu_id]}:
            differences.append(f"GPU {gpu.gpu_id} names another lease than the one that holds it")
        lease = by_id.get(gpu.lease_id) if gpu.lease_id is not None else None
        if gpu.state is GpuState.HELD and (lease is None or not lease.keeps_gpus):
            differences.append(f"GPU {gpu.gpu_id} is held for a lease that is over")
    for lease in leases:
        own = sum(hold.lease_id == lease.lease_id for hold in holds)
        if lease.keeps_gpus and lease.is_live and own != len(lease.ordinals):
            differences.append(
                f"a lease on node {lease.node_id} has {own} of its {len(lease.ordinals)} GPUs"
            )
    return HeldCheck(held_count=len(holds), used_count=len(used), differences=tuple(differences))
