"""How long samples may be: cut or drop the overlong, count it, and recommend a length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lehr.samples.split import RowNumbers
from lehr.samples.table import TokenTable, segment_count

Overlong = Literal["truncate", "drop"]

#: Share of the rows, in percent, that a recommended length leaves whole.
COVERAGE_PERCENT = 95
#: Recommendations are multiples of this, which suits the hardware.
ROUND_TO = 64
#: Shortest length that a spec may ask for.
SHORTEST = 8
#: Tokens looked at in one go, so that memory does not grow with the rows.
_BLOCK_TOKENS = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCounts:
    """What became of the rows of one side.

    ``samples + dropped + untrainable`` are all rows; ``affected`` are those cut and those dropped.
    """

    rows: int = 0
    """Rows before anything was left out."""
    samples: int = 0
    """Rows that are used."""
    affected: int = 0
    """Rows longer than the maximum, whether cut or dropped."""
    dropped: int = 0
    """Rows left out because they are longer than the maximum, for whatever reason."""
    dropped_images: int = 0
    """Of them, rows that would have been cut but for their images."""
    dropped_answers: int = 0
    """Of them, rows that would have been cut but for an answer that fills the maximum alone."""
    untrainable: int = 0
    """Rows left out because nothing of an answer remains in them."""
    hidden: int = 0
    """Answers of the rows used that are not trained because the template hides part of them."""
    longest: int = 0
    """Tokens of the longest row, before cutting."""
    tokens: int = 0
    """Tokens of the rows that are used, after cutting; a preference is read once a side."""
    trained_tokens: int = 0
    """Tokens of answers among them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitted:
    """Rows that are used and how many tokens are cut off the beginning of each."""

    rows: RowNumbers
    cuts: NDArray[np.int64]
    counts: LengthCounts


def fit(table: TokenTable, rows: RowNumbers, *, max_length: int, overlong: Overlong) -> Fitted:
    """Bring ``rows`` of a table to ``max_length`` tokens: keep the last of each, or leave it out.

    A row of which nothing trainable is left is never used. A preference loses the oldest tokens of
    its prompt, the same ones on both sides.
    """
    lengths = table.lengths[rows]
    is_overlong = lengths > max_length
    # Of answers that are compared none is cut, nor left without a token of its prompt.
    has_image = is_overlong & (table.images[rows] > 0)
    has_long_answer = is_overlong & ~has_image & (table.answer_lengths[rows] >= max_length)
    is_dropped = is_overlong if overlong == "drop" else has_image | has_long_answer
    cuts = np.where(is_overlong & ~is_dropped, lengths - max_length, 0)
    is_used = ~is_dropped & _is_trainable(table, rows, lengths, cuts)
    used, used_cuts = rows[is_used], cuts[is_used]
    is_cutting = overlong == "truncate"
    counts = LengthCounts(
        rows=len(rows),
        samples=len(used),
        affected=_count(is_overlong),
        dropped=_count(is_dropped),
        dropped_images=_count(has_image) if is_cutting else 0,
        dropped_answers=_count(has_long_answer) if is_cutting else 0,
        untrainable=_count(~is_dropped & ~is_used),
        hidden=int(table.hidden[used].sum(dtype=np.int64)),
        longest=int(lengths.max(initial=0)),
        tokens=_token_count(table, used, used_cuts),
        trained_tokens=_trained_count(table, used, used_cuts),
    )
    return Fitted(rows=used, cuts=used_cuts, counts=counts)


def _is_trainable(
    table: TokenTable, rows: RowNumbers, lengths: NDArray[np.int64], cuts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return whether the loss of each row has a term after its cut."""
    if table.kind == "prompt_answer":
        return lengths > 0
    if segment_count(table.kind) > 1:
        return table.trained_counts[rows] > 0
    # Nothing predicts the first token that is kept, but a step's verdict is not predicted from
    # the token before it.
    unpredicted = 0 if table.kind == "stepwise" else 1
    is_trainable: NDArray[np.bool_] = table.trained_ends[rows] > cuts + unpredicted
    return is_trainable


def _token_count(table: TokenTable, rows: RowNumbers, cuts: NDArray[np.int64]) -> int:
    ends, begins = table.segment_ends[rows], table.begins[rows]
    count = int((ends[:, -1] - begins - cuts).sum())
    if ends.shape[1] == 3:
        count += int((ends[:, 0] - begins - cuts).sum())
    return count


def _trained_count(table: TokenTable, rows: RowNumbers, cuts: NDArray[np.int64]) -> int:
    """Count the trained tokens of rows after their cuts; only rows that are cut are read again."""
    count = int(table.trained_counts[rows].sum(dtype=np.int64))
    is_cut = cuts > 0
    if not is_cut.any() or segment_count(table.kind) > 1:
        return count
    order = np.argsort(rows[is_cut])
    begins = table.begins[rows[is_cut]][order]
    return count - _trained_between(table, begins, begins + cuts[is_cut][order])


def _trained_between(table: TokenTable, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
    """Count the trained tokens of ascending spans, a block of the flat array at a time."""
    count, at = 0, 0
    while at < len(begins):
        until = int(np.searchsorted(begins, begins[at] + _BLOCK_TOKENS))
        first, last = int(begins[at]), int(ends[until - 1])
        # One more place, so that an end is a place of its own.
        block = np.append(table.trained[first:last] != 0, False)
        edges = np.stack((begins[at:until], ends[at:until]), axis=1).ravel() - first
        count += int(np.add.reduceat(block, edges, dtype=np.int64)[::2].sum())
        at = until
        table.release()
    return count


def _count(flags: NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(flags))


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


def recommend(lengths: NDArray[Any], *, context: int | None) -> Recommendation:
    """Return the shortest length that leaves 95 % of the rows whole, as far as the model reads.

    It is rounded up to a multiple of 64, but not beyond the longest row. ``lengths`` are tokens
    of uncut rows, at least one.
    """
    # The row at rank ceil(95 % of n), counted from 1, in whole numbers.
    rank = -(-len(lengths) * COVERAGE_PERCENT // 100)
    covering, longest = int(np.partition(lengths, rank - 1)[rank - 1]), int(lengths.max())
    rounded = min(-(-covering // ROUND_TO) * ROUND_TO, longest)
    wanted = max(rounded, SHORTEST)
    is_capped = context is not None and covering > context
    max_length = wanted if context is None else min(wanted, context)
    return Recommendation(
        max_length=max_length,
        would_cut=int(np.count_nonzero(lengths > max_length)),
        rows=len(lengths),
        longest=longest,
        is_capped=is_capped,
    )
