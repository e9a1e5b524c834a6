"""Who gets GPUs next, tier by tier, in the order of turns; one pure decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lehr.training.ends import RunEnd
from services.scheduler.domain.turns import Shares, Turns, Waiting


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

    def end(self, job: Waiting, tiers: Mapping[str, Tier]) -> RunEnd | None:
        """Say why a job can compute no more; None when it can, or could if a node came back.

        One that is paid for only on tiers without a node, while others have one, does not wait for
        what may never come: with more money it would run.
        """
        if self.deadline is not None and self.deadline <= timedelta(0):
            return RunEnd.DEADLINE_REACHED
        there = [tier for tier in job.tiers if _exists(tiers.get(tier), job.gpu_count)]
        return None if self.of(there or job.tiers) else RunEnd.BUDGET_EXHAUSTED

    def of(self, tiers: Sequence[str]) -> list[tuple[str, timedelta]]:
        """Return those of ``tiers`` that are paid for, with how long."""
        funded = [(tier, self.tiers.get(tier, timedelta(0))) for tier in tiers]
        return [(tier, time) for tier, time in funded if time > timedelta(0)]


#: Funds no tier: a job that neither takes a tier nor keeps one from others.
NOTHING = Funding(tiers={}, deadline=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A job that should be given GPUs now."""

    job: Waiting
    tiers: tuple[str, ...]
    """Tiers that may be tried now and that no job before it waits for, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Which jobs to place, as far as it can be said."""

    placements: list[Placement]
    """In the order in which to ask for their GPUs."""
    unasked: list[Waiting]
    """Jobs that take a tier, or keep one from others, and whose funding is not known: ask for it
    and decide again."""


@dataclass(slots=True)
class _Capacity:
    """Free GPUs by tier and node, taken away as jobs are placed."""

    tiers: Mapping[str, Tier]
    free: dict[str, list[int]] = field(init=False)
    blocked: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.free = {name: sorted(tier.free_per_node) for name, tier in self.tiers.items()}

    def open_to(self, job: Waiting, funding: Funding | None, *, now: datetime) -> tuple[str, ...]:
        """Return the tiers that a job may have now or could wait for, and that nobody keeps."""
        tried = job.tiers_at(now)
        if funding is not None:
            tried = tuple(tier for tier, _ in funding.of(tried))
        return tuple(
            tier
            for tier in tried
            if tier not in self.blocked and _exists(self.tiers.get(tier), job.gpu_count)
        )

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
    queue: Sequence[Waiting],
    tiers: Mapping[str, Tier],
    *,
    now: datetime,
    shares: Shares,
    funding: Mapping[str, Funding],
) -> Decision:
    """Decide which jobs to place now; ``funding`` is by job, as far as it was asked for.

    A job that waits for a tier keeps it from jobs behind it, so that many small ones cannot starve
    a large one; it never keeps other tiers from them. One that no node could ever serve, that is
    not paid for, or whose next try is not due, keeps nothing.
    """
    capacity = _Capacity(tiers)
    placements, unasked = [], []
    due = [job for job in queue if job.not_before is None or job.not_before <= now]
    turns = Turns(due, shares, now=now)
    for job in turns:
        known = funding.get(job.job_id)
        wanted = capacity.open_to(job, known, now=now)
        if not wanted:
            continue
        if known is None:
            unasked.append(job)
        if any(capacity.take(tier, job.gpu_count) for tier in wanted):
            placements.append(Placement(job=job, tiers=wanted))
            turns.took(job)
        else:
            capacity.blocked.update(wanted)
    return Decision(placements=placements, unasked=unasked)


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
