"""Facts about leases, said by the allocator; each carries the whole lease as it is now."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from lehr.events.base import Event, Fact


class LeaseSnapshot(Fact):
    """A lease at one version; times are those of the allocator's database."""

    lease_id: str
    job_id: str
    project: str
    run_id: str
    attempt: int
    epoch: int
    node_id: str
    tier: str
    gpu_count: int
    phase: str
    """GRANTED, STARTING, RUNNING, DRAINING, LOST or CLOSED."""
    close_reason: str = ""
    """RunEnd word; set when LOST or CLOSED."""
    close_message: str = ""
    grant_time: datetime
    running_time: datetime | None = None
    end_time: datetime | None = None
    alive_time: datetime | None = None
    stop_time: datetime | None = None
    funded_until: datetime | None = None
    committed_time: datetime | None = None
    """Instant at which the newest committed checkpoint was taken."""
    close_time: datetime | None = None


class LeaseEvent(Event):
    """What every fact about a lease carries."""

    NOUN: ClassVar[str] = "lease"

    lease: LeaseSnapshot

    @property
    def subject_id(self) -> str:
        """The lease."""
        return self.lease.lease_id


class LeaseGranted(LeaseEvent):
    """GPUs are held for a run."""

    PAST: ClassVar[str] = "granted"


class LeasePhaseChanged(LeaseEvent):
    """The lease moved to another phase, or a time of it became known."""

    PAST: ClassVar[str] = "phase"


class LeaseClosed(LeaseEvent):
    """The lease is over; nothing of it changes any more."""

    PAST: ClassVar[str] = "closed"
