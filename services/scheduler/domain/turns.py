"""In which order the queue is served: turns between tenants and projects, then priority and age."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

AGEING = timedelta(minutes=10)
"""So much waiting weighs as one GPU that a project holds, or as one of a job's priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A queued job as placement sees it."""

    job_id: str
    tenant: str
    project: str
    priority: int
    queue_time: datetime
    wait_time: datetime
    not_before: datetime | None
    tiers: tuple[str, ...]
    """The tier and its backups, in order."""
    backup_after: timedelta
    gpu_count: int

    def tiers_at(self, now: datetime) -> tuple[str, ...]:
        """Return the tiers that may be tried by now."""
        if not self.backup_after:
            return self.tiers
        waited = max(now - self.wait_time, timedelta(0))
        return self.tiers[: 1 + waited // self.backup_after]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a project has had of the GPUs."""

    gpu_count: int = 0
    """GPUs of its live runs."""
    turn_time: datetime | None = None
    """When a run of it last began; None when none did lately."""


#: By tenant and project; one that is missing has had nothing.
Shares = Mapping[tuple[str, str], Share]


class _Line:
    """Jobs that wait in one line, and what the line has had."""

    def __init__(self, name: str, jobs: Iterator[Waiting], share: Share) -> None:
        self.name = name
        self.jobs = jobs
        self.share = share
        self.head = next(jobs, None)
        """The job that is served next; None when none is left."""

    def rank(self, now: datetime) -> tuple[int, datetime, str]:
        """Sorts lines: the one that holds the fewest GPUs, then the one that waits longest.

        Waiting counts against GPUs that are held, so that newcomers who hold none cannot keep
        anybody waiting for ever.
        """
        since = self.head.queue_time if self.head else now
        since = max(since, self.share.turn_time or since)
        return self.share.gpu_count - _aged(since, now), since, self.name


class Turns:
    """The queue in the order in which it is served, told job by job.

    Tenants take turns, and projects within a tenant; within a project the higher priority comes
    first, then the older job. The order of one tenant's jobs does not depend on other tenants.
    """

    def __init__(self, queue: Iterable[Waiting], shares: Shares, *, now: datetime) -> None:
        self._now = now
        self._lines: dict[tuple[str, ...], _Line] = {}
        projects: dict[str, dict[str, list[Waiting]]] = defaultdict(lambda: defaultdict(list))
        for job in queue:
            projects[job.tenant][job.project].append(job)
        for tenant, of_project in projects.items():
            lines = [
                self._add((tenant, project), self._sorted(jobs), shares.get((tenant, project)))
                for project, jobs in of_project.items()
            ]
            self._add((tenant,), self._served(lines), _of_tenant(tenant, shares))

    def __iter__(self) -> Iterator[Waiting]:
        return self._served([line for name, line in self._lines.items() if len(name) == 1])

    def took(self, job: Waiting) -> None:
        """Count the job that was just told as a turn; one that got nothing has had none."""
        for name in ((job.tenant,), (job.tenant, job.project)):
            line = self._lines[name]
            gpu_count = line.share.gpu_count + job.gpu_count
            line.share = Share(gpu_count=gpu_count, turn_time=self._now)

    def _add(self, name: tuple[str, ...], jobs: Iterator[Waiting], share: Share | None) -> _Line:
        line = self._lines[name] = _Line(name[-1], jobs, share or Share())
        return line

    def _sorted(self, jobs: Iterable[Waiting]) -> Iterator[Waiting]:
        def rank(job: Waiting) -> tuple[int, datetime, str]:
            return -job.priority - _aged(job.queue_time, self._now), job.queue_time, job.job_id

        return iter(sorted(jobs, key=rank))

    def _served(self, lines: Iterable[_Line]) -> Iterator[Waiting]:
        # Ranks differ in the names at the latest, so lines themselves are never compared.
        due = [(line.rank(self._now), line) for line in lines]
        heapq.heapify(due)
        while due:
            _, line = heapq.heappop(due)
            if line.head is None:
                continue
            yield line.head
            # Only now, for the turn may have been taken meanwhile.
            line.head = next(line.jobs, None)
            heapq.heappush(due, (line.rank(self._now), line))


def in_turns(queue: Iterable[Waiting], shares: Shares, *, now: datetime) -> list[Waiting]:
    """Return the order in which the queue is served if each job takes its turn."""
    turns = Turns(queue, shares, now=now)
    order = []
    for job in turns:
        turns.took(job)
        order.append(job)
    return order


def position(job_id: str, order: Sequence[Waiting]) -> int:
    """Return the place of a job among those that want one of its tiers, 1 for the next.

    0 when it is not in the queue.
    """
    index = next((index for index, job in enumerate(order) if job.job_id == job_id), None)
    if index is None:
        return 0
    wanted = set(order[index].tiers)
    return 1 + sum(not wanted.isdisjoint(job.tiers) for job in order[:index])


def _of_tenant(tenant: str, shares: Shares) -> Share:
    own = [share for (owner, _), share in shares.items() if owner == tenant]
    return Share(
        gpu_count=sum(one.gpu_count for one in own),
        turn_time=max((one.turn_time for one in own if one.turn_time), default=None),
    )


def _aged(since: datetime, now: datetime) -> int:
    return max(now - since, timedelta(0)) // AGEING
