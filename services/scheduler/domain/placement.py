"""Who gets GPUs next: priority, then age, tier by tier; one pure decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lehr.training.ends import RunEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A queued job as placement sees it."""

    job_id: str
    tenant: str
    priority: int
    queue_time: datetime
    wait_time: datetime
    not_before: datetime | None
    tiers: tuple[str, ...]
    """The tier and its backups, in order."""
    backup_after: timedelta
    gpu_count: int

    @property
    def rank(self) -> tuple[int, datetime, str]:
        """Sorts the queue: higher priority first, then the older."""
        return (-self.priority, self.queue_time, self.job_id)

    def tiers_at(self, now: datetime) -> tuple[str, ...]:
        """Return the tiers that may be tried by now."""
        if not self.backup_after:
            return self.tiers
        waited = max(now - self.wait_time, timedelta(0))
        return self.tiers[: 1 + waited // self.backup_after]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A kind of GPU, what exists of it and what is free."""

    tier: str
    memory_bytes: int = 0
    total_count: int = 0
    free_count: int = 0
    node_count_max: int = 0
    """Most GPUs on one live node."""
    free_per_node: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Funding:
    """How long a job may still compute."""

    tiers: Mapping[str, timedelta]
    """Running time that is paid for, by tier."""
    deadline: timedelta | None
    """Running time that is allowed; None for any."""

    @property
    def end(self) -> RunEnd | None:
        """Why the job can compute no more, on whatever tier; None when it can."""
        if self.deadline is not None and self.deadline <= timedelta(0):
            return RunEnd.DEADLINE_REACHED
        if all(funded <= timedelta(0) for funded in self.tiers.values()):
            return RunEnd.BUDGET_EXHAUSTED
        return None

    def of(self, tiers: Sequence[str]) -> list[tuple[str, timedelta]]:
        """Return those of ``tiers`` that are paid for, with how long."""
        funded = [(tier, self.tiers.get(tier, timedelta(0))) for tier in tiers]
        return [(tier, time) for tier, time in funded if time > timedelta(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A job that should be given GPUs now."""

    job: Waiting
    tiers: tuple[str, ...]
    """Tiers that may be tried now and that no job before it waits for, in order."""


@dataclass(slots=True)
class _Capacity:
    """Free GPUs by tier and node, taken away as jobs are placed."""

    tiers: Mapping[str, Tier]
    free: dict[str, list[int]] = field(init=False)
    blocked: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.free = {name: sorted(tier.free_per_node) for name, tier in self.tiers.items()}

    def could_ever(self, tier: str, gpu_count: int) -> bool:
        known = self.tiers.get(tier)
        return known is not None and known.node_count_max >= gpu_count

    def take(self, tier: str, gpu_count: int) -> bool:
        """Take GPUs of the fullest node that still has enough."""
        nodes = self.free.get(tier, [])
        for index, free in enumerate(nodes):
            if free >= gpu_count:
                nodes[index] = free - gpu_count
                nodes.sort()
                return True
        return False


def next_placements(
    queue: Sequence[Waiting], tiers: Mapping[str, Tier], *, now: datetime
) -> list[Placement]:
    """Return the jobs to place now, in the order in which to ask for their GPUs.

    A job that waits for a tier keeps it from jobs of lower rank, so that many small ones cannot
    starve a large one; it never keeps other tiers from them. One that no node could ever serve, or
    whose next try is not due, keeps nothing.
    """
    capacity = _Capacity(tiers)
    placements = []
    for job in sorted(queue, key=lambda one: one.rank):
        if job.not_before is not None and job.not_before > now:
            continue
        possible = [tier for tier in job.tiers_at(now) if capacity.could_ever(tier, job.gpu_count)]
        unblocked = tuple(tier for tier in possible if tier not in capacity.blocked)
        if any(capacity.take(tier, job.gpu_count) for tier in unblocked):
            placements.append(Placement(job=job, tiers=unblocked))
        else:
            capacity.blocked.update(possible)
    return placements


def why_waiting(job: Waiting, tiers: Mapping[str, Tier], *, now: datetime) -> str:
    """Say what a queued job waits for, for a person."""
    if job.not_before is not None and job.not_before > now:
        return f"is tried again in {(job.not_before - now).total_seconds():.0f} s"
    allowed = job.tiers_at(now)
    if not tiers:
        return f"waits for {' or '.join(allowed)}"
    if not any(_exists(tiers.get(tier), job.gpu_count) for tier in job.tiers):
        most = "; ".join(_most(name, tiers.get(name)) for name in job.tiers)
        return f"cannot run at present: it needs {job.gpu_count} GPUs on one node, and {most}"
    return "waits for " + ", or ".join(_free(name, tiers.get(name)) for name in allowed)


def _exists(tier: Tier | None, gpu_count: int) -> bool:
    return tier is not None and tier.node_count_max >= gpu_count


def _most(name: str, tier: Tier | None) -> str:
    return f"no node has more than {tier.node_count_max if tier else 0} {name}"


def _free(name: str, tier: Tier | None) -> str:
    if tier is None:
        return f"{name}: 0 of 0 free"
    return f"{name}: {tier.free_count} of {tier.total_count} free"
