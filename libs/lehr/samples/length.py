"""How long samples may be: cut or drop the overlong, count it, and recommend a length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lehr.samples.tokens import Sample

#: Share of the rows, in percent, that a recommended length leaves whole.
COVERAGE_PERCENT = 95
#: Recommendations are multiples of this, which suits the hardware.
ROUND_TO = 64
#: Shortest length that a spec may ask for.
SHORTEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCounts:
    """What became of the rows of one side."""

    rows: int = 0
    """Rows before anything was left out."""
    samples: int = 0
    """Rows that are used."""
    affected: int = 0
    """Rows longer than the maximum, whether cut or dropped."""
    dropped: int = 0
    """Rows left out because they are longer than the maximum."""
    untrainable: int = 0
    """Rows left out because nothing of an answer remains in them."""
    longest: int = 0
    """Tokens of the longest row, before cutting."""
    tokens: int = 0
    """Tokens of the rows that are used, after cutting."""
    trained_tokens: int = 0
    """Tokens of answers among them."""


def fit(
    samples: Iterable[Sample], *, max_length: int, overlong: Literal["truncate", "drop"]
) -> tuple[list[Sample], LengthCounts]:
    """Bring samples to ``max_length`` tokens: keep the last of each, or leave it out.

    A sample of which nothing trainable is left is never returned.
    """
    kept: list[Sample] = []
    rows = affected = dropped = untrainable = longest = 0
    for sample in samples:
        rows += 1
        longest = max(longest, len(sample))
        is_overlong = len(sample) > max_length
        affected += is_overlong
        if is_overlong and overlong == "drop":
            dropped += 1
            continue
        fitting = sample.last(max_length) if is_overlong else sample
        if fitting.is_trainable:
            kept.append(fitting)
        else:
            untrainable += 1
    counts = LengthCounts(
        rows=rows,
        samples=len(kept),
        affected=affected,
        dropped=dropped,
        untrainable=untrainable,
        longest=longest,
        tokens=sum(map(len, kept)),
        trained_tokens=sum(sample.trained_tokens for sample in kept),
    )
    return kept, counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A maximum length, and what it would cut."""

    max_length: int
    """Tokens."""
    would_cut: int
    """Rows that are longer than that."""
    rows: int
    longest: int
    """Tokens of the longest row."""
    is_capped: bool
    """Whether the model's context, not the rows, set the length."""

    @property
    def warning(self) -> str | None:
        """What to tell the user when the model cannot read 95 % of the rows whole."""
        if not self.is_capped:
            return None
        percent = 100 * self.would_cut / self.rows
        return (
            f"the model reads at most {self.max_length} tokens: "
            f"{self.would_cut} of {self.rows} rows ({percent:.3g} %) would be cut"
        )


def recommend(lengths: Sequence[int], *, context: int | None) -> Recommendation:
    """Return the shortest length that leaves 95 % of the rows whole, as far as the model reads.

    It is rounded up to a multiple of 64, but not beyond the longest row. ``lengths`` are tokens
    of uncut rows, at least one.
    """
    ordered = sorted(lengths)
    # The row at rank ceil(95 % of n), counted from 1, in whole numbers.
    rank = -(-len(ordered) * COVERAGE_PERCENT // 100)
    covering, longest = ordered[rank - 1], ordered[-1]
    rounded = min(-(-covering // ROUND_TO) * ROUND_TO, longest)
    wanted = max(rounded, SHORTEST)
    is_capped = context is not None and covering > context
    max_length = wanted if context is None else min(wanted, context)
    return Recommendation(
        max_length=max_length,
        would_cut=sum(length > max_length for length in ordered),
        rows=len(ordered),
        longest=longest,
        is_capped=is_capped,
    )
