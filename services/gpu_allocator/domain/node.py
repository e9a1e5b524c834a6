"""Node: a machine with GPUs, and which of its syncs are believed."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Self

from services.gpu_allocator.domain.errors import IncarnationFenced
from services.gpu_allocator.domain.expiry import Amnesty
from services.gpu_allocator.domain.gpu import GpuReport
from services.gpu_allocator.domain.lease import LeaseReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Everything that a node has to say at once."""

    node_id: str
    name: str
    incarnation: int
    """Grows with every start of the agent."""
    boot_id: str
    sync_sequence: int
    """Grows with every sync of this incarnation."""
    gpus: tuple[GpuReport, ...]
    leases: tuple[LeaseReport, ...]
    is_draining: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine as it was last heard."""

    node_id: str
    name: str
    incarnation: int = 0
    boot_id: str = ""
    sync_sequence: int = 0
    sync_time: datetime | None = None
    is_draining: bool = False

    def is_repeat(self, sync: Sync) -> bool:
        """Whether this sync, or a later one, has been applied already.

        Raises:
            IncarnationFenced: a newer start of the agent has spoken, or another machine.
        """
        if sync.incarnation < self.incarnation:
            raise IncarnationFenced(
                f"node {self.name} has spoken as incarnation {self.incarnation}, so incarnation "
                f"{sync.incarnation} is not heard any more; end it, or start the agent again with "
                "a higher one",
                node=self.name,
                incarnation=sync.incarnation,
                newest_incarnation=self.incarnation,
            )
        if sync.incarnation > self.incarnation:
            return False
        if sync.boot_id != self.boot_id:
            raise IncarnationFenced(
                f"incarnation {sync.incarnation} of node {self.name} speaks from another machine "
                "or boot; give each machine a name of its own, and each start a new incarnation",
                node=self.name,
                incarnation=sync.incarnation,
            )
        return sync.sync_sequence <= self.sync_sequence

    def heard(self, sync: Sync, *, now: datetime) -> Self:
        """Return the node after an accepted sync."""
        return replace(
            self,
            incarnation=sync.incarnation,
            boot_id=sync.boot_id,
            sync_sequence=sync.sync_sequence,
            sync_time=now,
            is_draining=sync.is_draining,
        )

    def can_grant(self, *, now: datetime, fresh: timedelta) -> bool:
        """Whether it was heard a moment ago and takes new work."""
        return not self.is_draining and self.sync_time is not None and now - self.sync_time <= fresh

    def is_live(self, amnesty: Amnesty, *, now: datetime, live: timedelta) -> bool:
        """Whether its silence is not yet a loss."""
        return self.sync_time is not None and amnesty.silence(self.sync_time, now) <= live

    def is_new_incarnation(self, sync: Sync) -> bool:
        """Whether the agent was started anew since it was last heard."""
        return sync.incarnation > self.incarnation

    def is_new_boot(self, sync: Sync) -> bool:
        """Whether the machine was started anew, which no process survives."""
        return self.boot_id not in {"", sync.boot_id}
