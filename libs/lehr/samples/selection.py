"""Rows of a token table as they are trained: views of its arrays, cut to their last tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lehr.samples.length import Fitted
from lehr.samples.table import TokenTable


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Token ids of one text, and which of them are trained."""

    token_ids: NDArray[np.int32]
    trained: NDArray[np.uint8]
    """Not 0 where the token is trained, 0 where it is only read."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def trained_count(self) -> int:
        """Tokens that are trained."""
        return int(np.count_nonzero(self.trained))

    def labels(self, ignore: int = -100) -> NDArray[np.int64]:
        """Return the token ids with ``ignore`` in place of those that are not trained."""
        return np.where(self.trained, self.token_ids, ignore).astype(np.int64)


class Samples:
    """The rows that are used, in their order; nothing is copied until a row is asked for."""

    def __init__(self, table: TokenTable, fitted: Fitted) -> None:
        self.table = table
        self.rows = fitted.rows
        """Numbers of the rows in the table."""
        self._begins = table.begins[fitted.rows] + fitted.cuts
        self._ends = table.segment_ends[fitted.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Sample:
        """Return a row from its first kept token to its last; of a preference, see ``sides``."""
        return self._sample(int(self._begins[at]), int(self._ends[at, -1]))

    def __iter__(self) -> Iterator[Sample]:
        return (self[at] for at in range(len(self)))

    def sides(self, at: int) -> tuple[Sample, Sample]:
        """Return prompt and chosen, prompt and rejected answer of a preference."""
        begin, prompt_end, chosen_end, end = int(self._begins[at]), *map(int, self._ends[at])
        prompt = self._sample(begin, prompt_end)
        chosen, rejected = self._sample(prompt_end, chosen_end), self._sample(chosen_end, end)
        return _joined(prompt, chosen), _joined(prompt, rejected)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, after any cut."""
        return self._ends[:, -1] - self._begins

    def highest_token(self) -> int:
        """Return the highest token id that is used; -1 where there is none."""
        return max((int(sample.token_ids.max(initial=-1)) for sample in self), default=-1)

    def _sample(self, begin: int, end: int) -> Sample:
        return Sample(self.table.token_ids[begin:end], self.table.trained[begin:end])


def _joined(first: Sample, second: Sample) -> Sample:
    return Sample(
        np.concatenate((first.token_ids, second.token_ids)),
        np.concatenate((first.trained, second.trained)),
    )
