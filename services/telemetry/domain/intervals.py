"""Which numbers of a gapless count have arrived, in whatever order and however often."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of whole numbers from 1, as ascending intervals that neither overlap nor touch."""

    spans: tuple[tuple[int, int], ...] = ()
    """First and last of each interval, both included."""

    @classmethod
    def of(cls, spans: Iterable[Sequence[int]]) -> Self:
        """Build the set from intervals in any order; they may overlap."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted((span[0], span[1]) for span in spans):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    def add(self, spans: Iterable[tuple[int, int]]) -> Self:
        """Return the set with more intervals in it."""
        return type(self).of((*self.spans, *spans))

    @property
    def has_gap(self) -> bool:
        """Whether some number has arrived before one below it."""
        return bool(self.spans) and self.spans[-1][1] > self.watermark

    @property
    def watermark(self) -> int:
        """The number up to which every number has arrived; 0 before the first."""
        if self.spans and self.spans[0][0] <= 1:
            return self.spans[0][1]
        return 0
