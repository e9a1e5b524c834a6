"""Single answers as tensors, in the layout of trl's KTOTrainer."""

# R = answers in the batch, T = positions of the longest, K = of the longest with another's answer

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lehr.samples.selection import Answer, Answers, Sample
from services.trainer_runner.trainer.data.batches import Batch, EpochBatches
from services.trainer_runner.trainer.data.pairs import collate_sides


@dataclass(frozen=True, slots=True, eq=False)
class Rated:
    """An answer, and its prompt with the answer of another row where one is wanted."""

    answer: Answer
    mismatch: Sample | None = None


class StepBatches(EpochBatches):
    """Batches in which each row is given the row before it of its optimiser step.

    The first row of a step is given the last one, as trl does within a batch. How a step is cut
    into passes makes no difference; a step of a single row has that row alone.
    """

    def __init__(self, count: int, *, batch_size: int, batches_per_step: int, seed: int) -> None:
        super().__init__(count, batch_size=batch_size, seed=seed)
        self._rows_per_step = batch_size * batches_per_step

    def keys(self, order: list[int]) -> list[Any]:
        """Return the number of each row and of the row that it is given."""
        found: list[tuple[int, int]] = []
        for begin in range(0, len(order), self._rows_per_step):
            step = order[begin : begin + self._rows_per_step]
            found += zip(step, rotated(step), strict=True)
        return found


def rotated(rows: list[int]) -> list[int]:
    """Return rows one place further, the last of them first."""
    return rows[-1:] + rows[:-1]


class AnswerList(torch.utils.data.Dataset[Rated]):  # type: ignore[misc]  # torch is not typed here
    """Answers by number, or by their number and that of another answer to their prompt."""

    def __init__(self, answers: Answers, *, max_length: int) -> None:
        self._answers = answers
        self._max_length = max_length

    def __len__(self) -> int:
        return len(self._answers)

    def __getitem__(self, key: int | tuple[int, int]) -> Rated:
        if isinstance(key, int):
            return Rated(self._answers[key])
        answer, other = self._answers[key[0]], self._answers[key[1]]
        return Rated(answer, answer.answered_by(other, max_length=self._max_length))

    def in_order(self, *, with_others: bool) -> list[Any]:
        """Return the keys of all answers in their own order, each with the one before it."""
        numbers = list(range(len(self)))
        return list(zip(numbers, rotated(numbers), strict=True)) if with_others else numbers


def collate_answers(rows: Sequence[Rated], *, pad_id: int) -> Batch:
    """Pad answers on the right to one length.

    Returns:
        ``input_ids``, ``attention_mask`` and ``completion_mask`` of shape (R, T), dtype int64;
        ``label`` of shape (R,), true where the answer is wanted; where rows hold the answers of
        others, the same three of shape (R, K) with ``KL_`` before their names.
    """
    batch = collate_sides([row.answer.whole for row in rows], pad_id=pad_id)
    others = [row.mismatch for row in rows if row.mismatch is not None]
    if others:
        mismatched = collate_sides(others, pad_id=pad_id)
        batch.update({f"KL_{name}": values for name, values in mismatched.items()})
    batch["label"] = torch.tensor([row.answer.is_wanted for row in rows])
    return batch


def answers_in_order(
    rows: AnswerList, keys: list[Any], *, size: int, pad_id: int
) -> Iterator[Batch]:
    """Yield the rows of ``keys`` in batches of ``size``."""
    for begin in range(0, len(keys), size):
        yield collate_answers([rows[key] for key in keys[begin : begin + size]], pad_id=pad_id)
