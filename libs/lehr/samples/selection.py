"""Rows of a token table as they are trained: views of its arrays, cut to their last tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

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

    def last(self, count: int) -> Sample:
        """Return the sample cut to its last ``count`` tokens, at least one."""
        return Sample(self.token_ids[-count:], self.trained[-count:])

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
        prompt, chosen, rejected = self.segments(at)
        return _joined(prompt, chosen), _joined(prompt, rejected)

    def segments(self, at: int) -> tuple[Sample, ...]:
        """Return prompt and answers of a row of which they are segments."""
        places = (int(self._begins[at]), *map(int, self._ends[at]))
        return tuple(self._sample(begin, end) for begin, end in pairwise(places))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, after any cut."""
        return self._ends[:, -1] - self._begins

    def highest_token(self) -> int:
        """Return the highest token id that is used; -1 where there is none."""
        return max((int(sample.token_ids.max(initial=-1)) for sample in self), default=-1)

    def _sample(self, begin: int, end: int) -> Sample:
        return Sample(self.table.token_ids[begin:end], self.table.trained[begin:end])


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One answer to a prompt, and whether it is wanted."""

    prompt: Sample
    completion: Sample
    is_wanted: bool

    @property
    def whole(self) -> Sample:
        """Prompt and answer."""
        return _joined(self.prompt, self.completion)

    def answered_by(self, other: Answer, *, max_length: int) -> Sample:
        """Return the prompt with the answer of another one, which is shorter than ``max_length``.

        The oldest tokens of the prompt are cut where both are longer than that together.
        """
        room = max_length - len(other.completion)
        prompt = self.prompt.last(room) if len(self.prompt) > room else self.prompt
        return _joined(prompt, other.completion)


class Answers:
    """The answers of rows one by one: of a preference the good one, then the bad one.

    Both keep what their pair was cut to, and lie on the side of the split where the pair is.
    """

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._per_row = 2 if samples.table.kind == "preference" else 1

    def __len__(self) -> int:
        return len(self._samples) * self._per_row

    def __getitem__(self, at: int) -> Answer:
        row, side = divmod(at, self._per_row)
        segments = self._samples.segments(row)
        if self._per_row == 2:
            return Answer(segments[0], segments[1 + side], side == 0)
        is_wanted = self._samples.table.labels[self._samples.rows[row]]
        return Answer(segments[0], segments[1], bool(is_wanted))


def _joined(first: Sample, second: Sample) -> Sample:
    return Sample(
        np.concatenate((first.token_ids, second.token_ids)),
        np.concatenate((first.trained, second.trained)),
    )
