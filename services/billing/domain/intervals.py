"""Stretches of time, so that no instant counts twice."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """From ``begin`` to just before ``end``; never negative, may be empty."""

    begin: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.end < self.begin:
            raise ValueError(f"{self.end} is before {self.begin}")

    @property
    def microseconds(self) -> int:
        """Its length, exact."""
        return (self.end - self.begin) // MICROSECOND


def without(interval: Interval, taken: Sequence[Interval]) -> list[Interval]:
    """Return the parts of ``interval`` that are in none of ``taken``."""
    left: list[Interval] = []
    begin = interval.begin
    for other in sorted(taken):
        if other.begin >= interval.end:
            break
        if other.begin > begin:
            left.append(Interval(begin, other.begin))
        begin = max(begin, other.end)
    if begin < interval.end:
        left.append(Interval(begin, interval.end))
    return left


def total(intervals: Iterable[Interval]) -> int:
    """Return the microseconds of intervals that do not overlap."""
    return sum(one.microseconds for one in intervals)
