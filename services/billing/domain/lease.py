"""Lease: what the allocator says of one, as far as money depends on it."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Self

from services.billing.domain.errors import LeaseImpossible


class LeasePhase(StrEnum):
    """GRANTED -> STARTING -> RUNNING -> DRAINING -> CLOSED, or LOST -> CLOSED."""

    GRANTED = "GRANTED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"
    LOST = "LOST"
    CLOSED = "CLOSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease at one version; all times are of the allocator's database."""

    lease_id: str
    tenant: str
    project: str
    job_id: str
    attempt: int
    epoch: int
    """Fencing number; grows with every grant, so a later run has the higher one."""
    tier: str
    gpu_count: int
    phase: LeasePhase
    close_reason: str = ""
    """RunEnd word; set when LOST or CLOSED."""
    version: int
    grant_time: datetime
    running_time: datetime | None = None
    end_time: datetime | None = None
    alive_time: datetime | None = None
    """Last accepted proof of life; alone, it raises no version."""
    stop_time: datetime | None = None
    funded_until: datetime | None = None
    committed_time: datetime | None = None
    """Instant at which the newest committed checkpoint was taken."""
    hold_ordinal: int = 0
    """Hold whose prices apply; 0 for none, which is never billed."""

    @property
    def is_open(self) -> bool:
        """Whether anything of it may still change."""
        return self.phase is not LeasePhase.CLOSED

    def check(self) -> None:
        """Refuse what no allocator can mean.

        Raises:
            LeaseImpossible: it ends before it begins, or has no GPUs.
        """
        begins = self.running_time
        if begins is not None and self.end_time is not None and self.end_time < begins:
            raise LeaseImpossible(self.lease_id, "ends before it runs")
        if begins is None and self.end_time is not None:
            raise LeaseImpossible(self.lease_id, "ends and never ran")
        if min(self.gpu_count, self.version, self.epoch) < 1:
            raise LeaseImpossible(self.lease_id, "has no GPUs, no version or no epoch")
        if not (self.tenant and self.job_id):
            raise LeaseImpossible(self.lease_id, "is nobody's")

    def after(self, heard: Self) -> Self:
        """Return what is known once ``heard`` is: the newer version, with the newest sign of life.

        A snapshot is complete, so a gap in the versions loses nothing and an old one adds nothing.
        """
        alive = max(filter(None, (self.alive_time, heard.alive_time)), default=None)
        newest = heard if heard.version > self.version else self
        return replace(newest, alive_time=alive, hold_ordinal=self.hold_ordinal)
