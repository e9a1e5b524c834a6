"""Runs of a job, points of its series, and which of them a later run made obsolete."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

STEP_MAX = 2**32 - 1
"""Largest step that the API can name."""

NAME_LENGTH_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run whose series were opened."""

    run_id: str
    tenant: str
    job_id: str
    epoch: int
    """Fencing number of its lease."""
    resume_step: int
    """Step of the checkpoint that it continues from; 0 is a fresh start."""


PointKey = tuple[str, int, str]
"""Job, step and name: what at most one point that counts may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of one series at one step, as one run reported it."""

    job_id: str
    run_id: str
    epoch: int
    step: int
    name: str
    value: float
    """Any double, NaN and infinities included."""
    time: datetime
    sequence: int
    """Number of the run's report that said it; of two for one step and name the higher counts."""
    is_superseded: bool = False
    """A later run computed the step anew."""

    @property
    def key(self) -> PointKey:
        """What it says something about."""
        return self.job_id, self.step, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one message of a run says: points, and which numbers of its count they are."""

    tenant: str
    job_id: str
    run_id: str
    epoch: int
    first_sequence: int
    last_sequence: int
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFilter:
    """Which points a reader wants."""

    after_step: int = 0
    names: tuple[str, ...] = ()
    """Only these series; empty for all."""
    with_superseded: bool = False
    """Those that a resume made obsolete, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPoint:
    """A point as readers see it."""

    step: int
    name: str
    value: str
    """With all its digits."""
    time: datetime
    epoch: int
    arrival: int = 0
    """Place in the order in which points came, where that was asked for."""


def value_to_text(value: float) -> str:
    """Return a value with all its digits; the same text always reads back as the same double."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def is_obsolete(*, step: int, epoch: int, runs: Iterable[Run]) -> bool:
    """Tell whether a later run continued from before this step, and so computes it anew."""
    return any(run.epoch > epoch and step > run.resume_step for run in runs)


def settle(points: Iterable[Point], runs: Iterable[Run]) -> list[Point]:
    """Return the points of one batch with at most one that counts for each step and name.

    Of the same epoch the higher sequence wins and the lower is dropped; of several epochs the
    highest counts and the others are kept as superseded. ``runs`` holds every run of the jobs.
    """
    known = list(runs)
    newest: dict[tuple[PointKey, int], Point] = {}
    for point in points:
        other = newest.get((point.key, point.epoch))
        if other is None or point.sequence > other.sequence:
            newest[point.key, point.epoch] = point
    counted = {point.key: 0 for point in newest.values()}
    for point in newest.values():
        counted[point.key] = max(counted[point.key], point.epoch)
    return [
        replace(
            point,
            is_superseded=point.epoch < counted[point.key]
            or is_obsolete(
                step=point.step,
                epoch=point.epoch,
                runs=(run for run in known if run.job_id == point.job_id),
            ),
        )
        for point in newest.values()
    ]


def yield_to(points: Iterable[Point], epochs: Mapping[PointKey, int]) -> list[Point]:
    """Return the points, superseded where a later epoch has the word already.

    ``epochs`` says which epoch counts for a key among the points that are stored.
    """
    return [
        replace(point, is_superseded=True) if epochs.get(point.key, 0) > point.epoch else point
        for point in points
    ]


def whole_steps(steps: Sequence[int], *, limit: int) -> tuple[int, bool]:
    """Return how many of the ascending ``steps`` make a page that ends with a whole step.

    Asking goes on after the last step of a page, so a page must not end within one. A step that has
    more than ``limit`` points by itself gives 0: it must be read whole.

    Returns:
        The count, and whether there is more behind it. ``steps`` holds one more than ``limit``
        where there is more.
    """
    if len(steps) <= limit:
        return len(steps), False
    cut = limit
    while cut > 0 and steps[cut - 1] == steps[limit]:
        cut -= 1
    return cut, True
