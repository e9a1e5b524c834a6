"""Gpu: one device of a node, and when it may be granted again."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from services.gpu_allocator.domain.errors import GpuNotQuarantined
from services.gpu_allocator.domain.lease import Lease


class GpuState(StrEnum):
    """FREE -> HELD -> CLEARING -> FREE or QUARANTINED; ABSENT while its node does not show it."""

    FREE = "FREE"
    HELD = "HELD"
    CLEARING = "CLEARING"
    QUARANTINED = "QUARANTINED"
    ABSENT = "ABSENT"


S = GpuState
#: Every legal move; HELD never becomes FREE without passing the question of proof.
MOVES: dict[GpuState, frozenset[GpuState]] = {
    S.FREE: frozenset({S.HELD, S.CLEARING, S.QUARANTINED, S.ABSENT}),
    S.HELD: frozenset({S.CLEARING, S.FREE, S.QUARANTINED}),
    S.CLEARING: frozenset({S.FREE, S.QUARANTINED, S.ABSENT}),
    S.QUARANTINED: frozenset({S.FREE, S.CLEARING, S.ABSENT}),
    S.ABSENT: frozenset({S.FREE, S.CLEARING, S.QUARANTINED}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """One device as its node sees it."""

    ordinal: int
    tier: str
    memory_bytes: int
    device_id: str
    is_clear: bool
    """No process of a lease runs on it."""
    epoch: int
    """Highest epoch that the node's journal holds for it."""
    is_stuck: bool
    """A process on it survived being killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device as the allocator knows it."""

    gpu_id: str
    node_id: str
    ordinal: int
    tier: str
    memory_bytes: int
    device_id: str
    state: GpuState
    lease_id: str | None = None
    """The lease that holds it, or whose processes are not yet proven dead."""
    epoch: int = 0
    """Epoch of its newest lease; only grows."""

    @property
    def is_unproven(self) -> bool:
        """Whether a lease holds it or held it, and its processes may still be there."""
        return self.lease_id is not None

    def after(self, lease: Lease) -> Self:
        """Return the GPU once its lease needs no GPU any more; proof of death is still awaited.

        A lease that no node was ever told of has no processes, so that needs no proof.
        """
        if self.state is not S.HELD or lease.keeps_gpus:
            return self
        return replace(self, state=S.CLEARING) if lease.is_offered else self.freed()

    def freed(self) -> Self:
        """Return the GPU as it can be granted; the epoch stays."""
        return replace(self, state=S.FREE, lease_id=None)

    def quarantined(self) -> Self:
        """Return the GPU as nobody gets it until the machine starts anew or a person vouches."""
        return replace(self, state=S.QUARANTINED, lease_id=None)

    def released(self) -> Self:
        """Return the GPU after an operator has vouched that its old process is dead.

        Its node has the last word: it is granted once it is said to be clear, and is back in
        quarantine if a process is still seen to be stuck.

        Raises:
            GpuNotQuarantined: there is nothing to release it from.
        """
        if self.state is not S.QUARANTINED:
            raise GpuNotQuarantined(self.gpu_id, self.state)
        return replace(self, state=S.CLEARING)

    def seen(self, report: GpuReport, *, is_new_boot: bool) -> Self:
        """Return the GPU after its node spoke of it; call it after ``after``.

        Proof of death is the node's word that nothing runs, given by a journal that knows the last
        lease, or a new start of the machine, which no process survives. What is in quarantine has
        broken that word once, so it needs the second, or an operator before the first.
        """
        if self.state is S.HELD:
            return self
        if report.is_stuck:
            return self if self.state is S.QUARANTINED else self.quarantined()
        if self.state is S.QUARANTINED and not is_new_boot:
            return self
        if is_new_boot or (report.is_clear and report.epoch >= self._epoch_to_prove):
            return replace(
                self.freed(),
                tier=report.tier,
                memory_bytes=report.memory_bytes,
                device_id=report.device_id,
            )
        return replace(self, state=S.CLEARING)

    def unseen(self, *, is_new_boot: bool) -> Self:
        """Return the GPU after its node spoke and did not name it."""
        if self.state is S.FREE or (is_new_boot and self.state in {S.CLEARING, S.QUARANTINED}):
            return replace(self, state=S.ABSENT, lease_id=None)
        return self

    @property
    def _epoch_to_prove(self) -> int:
        # Once proven, what the journal holds matters no more: a node may lose its disk.
        return self.epoch if self.is_unproven else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseGpu:
    """Vouch that what ran on a GPU in quarantine is dead."""

    request_id: str
    """Key of the request."""
    gpu_id: str
    principal: str
    """Who vouches."""
    reason: str
    """What they did or saw."""


def first_seen(report: GpuReport, *, gpu_id: str, node_id: str) -> Gpu:
    """Return a device that was not known before; what runs on it must end first."""
    return Gpu(
        gpu_id=gpu_id,
        node_id=node_id,
        ordinal=report.ordinal,
        tier=report.tier,
        memory_bytes=report.memory_bytes,
        device_id=report.device_id,
        state=S.ABSENT,
    ).seen(report, is_new_boot=False)
