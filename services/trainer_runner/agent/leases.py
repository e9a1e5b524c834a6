"""A lease as its node sees it: what was granted, what is wanted of it, and how far it is.

Instants are seconds of CLOCK_MONOTONIC, which trainer and agent share and which no one can set;
the wall clock is never asked for anything that is billed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lehr.training.ends import RunEnd


class Phase(StrEnum):
    """Where a lease is on its node; the allocator's words."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"
    CLOSED = "CLOSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """GPUs of this node promised to one run."""

    lease_id: str
    run_id: str
    job_id: str
    tenant: str
    project: str
    epoch: int
    """Fencing number."""
    tier: str
    ordinals: tuple[int, ...]
    """Numbers of the node's devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the allocator wants of one lease."""

    grant: Grant
    stop_reason: RunEnd | None = None
    """Stop it, and why; None lets it go on."""
    is_fenced: bool = False
    """It is not this node's any more."""
    funded_seconds: float | None = None
    """Computing that is paid for, from the moment it began; None sets no limit."""
    deadline_seconds: float | None = None
    """Computing until the job's deadline, from the same moment; None for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a run ended."""

    end: RunEnd
    message: str
    """What a person should know about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instants:
    """When a run's computing began, moved and ended; None for not yet or not known."""

    began: float | None = None
    moved: float | None = None
    ended: float | None = None
    committed: float | None = None
    """When the state of the newest committed checkpoint was taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """What the node says of one lease in a sync."""

    lease_id: str
    epoch: int
    phase: Phase
    instants: Instants
    ending: Ending | None
    pids: tuple[int, ...]


def age(now: float, instant: float | None) -> float | None:
    """Return how long ago an instant was; never negative."""
    return None if instant is None else max(0.0, now - instant)
