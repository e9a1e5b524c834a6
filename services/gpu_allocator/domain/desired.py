"""What a node should do about each lease it holds, or believes it holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.gpu_allocator.domain.gpu import Gpu, GpuReport
from services.gpu_allocator.domain.lease import Lease, LeasePhase, LeaseReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """One lease and what should become of it on the node."""

    lease_id: str
    epoch: int
    """The one to obey, or the one to end where it is fenced."""
    lease: Lease | None
    """None where this node's report names a lease that is not this node's."""
    is_fenced: bool = False
    """End its processes, drop what it staged, and raise the journal's epoch of its ordinals."""

    @property
    def should_stop(self) -> bool:
        """Whether the run must be asked to end."""
        return self.lease is not None and not self.is_fenced and self.lease.stop_time is not None

    @property
    def ordinals(self) -> tuple[int, ...]:
        """GPUs that it may use, or must leave."""
        if self.lease is None or self.lease.phase is LeasePhase.DRAINING:
            return ()
        return self.lease.ordinals


def for_node(
    leases: Sequence[Lease],
    reports: Sequence[LeaseReport],
    gpus: Sequence[Gpu],
    gpu_reports: Sequence[GpuReport],
) -> list[Desired]:
    """Return what the node should run, and what it must end.

    ``leases`` are those of the node that are open, still have GPUs, or were reported by it.
    """
    known = {lease.lease_id: lease for lease in leases}
    wanted = [
        Desired(lease_id=lease.lease_id, epoch=lease.epoch, lease=lease)
        for lease in leases
        if lease.is_live
    ]
    fenced: dict[tuple[str, int], Desired] = {}
    for report in reports:
        lease = known.get(report.lease_id)
        ended = report.phase is LeasePhase.CLOSED
        if not ended and (lease is None or lease.is_fenced_for(report)):
            fenced[report.lease_id, report.epoch] = Desired(
                lease_id=report.lease_id, epoch=report.epoch, lease=lease, is_fenced=True
            )
    for lease in _unheard_of(known, gpus, gpu_reports):
        key = (lease.lease_id, lease.epoch)
        fenced.setdefault(
            key, Desired(lease_id=lease.lease_id, epoch=lease.epoch, lease=lease, is_fenced=True)
        )
    return [*wanted, *fenced.values()]


def _unheard_of(
    known: dict[str, Lease], gpus: Sequence[Gpu], gpu_reports: Sequence[GpuReport]
) -> list[Lease]:
    """Return ended leases whose GPUs wait for a proof that the node's journal cannot give yet."""
    epochs = {report.ordinal: report.epoch for report in gpu_reports}
    return [
        lease
        for gpu in gpus
        if gpu.lease_id is not None
        and (lease := known.get(gpu.lease_id)) is not None
        and not lease.is_live
        and gpu.ordinal in epochs
        and epochs[gpu.ordinal] < lease.epoch
    ]
