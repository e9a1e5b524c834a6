"""Pairs of answers to one prompt as tensors, in the layout of trl's preference trainers."""

# P = pairs in the batch, R = sides, T = positions of the longest side

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from lehr.samples.selection import Sample, Samples
from services.trainer_runner.trainer.data.batches import Batch

Pair = tuple[Sample, Sample]
"""Prompt and chosen, prompt and rejected answer."""


class PairList(torch.utils.data.Dataset[Pair]):  # type: ignore[misc]  # torch is not typed here
    """Pairs by number."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, at: int) -> Pair:
        return self._samples.sides(at)


def collate_pairs(pairs: Sequence[Pair], *, pad_id: int) -> Batch:
    """Pad both sides of all pairs on the right to one length, chosen sides first.

    Returns:
        ``input_ids``, ``attention_mask`` and ``completion_mask`` of shape (2 P, T), dtype int64.
    """
    sides = [chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs]
    return collate_sides(sides, pad_id=pad_id)


def collate_sides(sides: Sequence[Sample], *, pad_id: int) -> Batch:
    """Pad prompts with their answers on the right to one length.

    Returns:
        ``input_ids``, ``attention_mask`` and ``completion_mask`` of shape (R, T), dtype int64.
    """
    shape = (len(sides), max(map(len, sides)))
    ids = np.full(shape, pad_id, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.int64)
    completion = np.zeros(shape, dtype=np.int64)
    for row, side in enumerate(sides):
        ids[row, : len(side)] = side.token_ids
        mask[row, : len(side)] = 1
        completion[row, : len(side)] = side.trained
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(mask),
        "completion_mask": torch.from_numpy(completion),
    }


def pairs_in_order(samples: Samples, *, batch_size: int, pad_id: int) -> Iterator[Batch]:
    """Yield the pairs once, in their own order."""
    for begin in range(0, len(samples), batch_size):
        numbers = range(begin, min(begin + batch_size, len(samples)))
        yield collate_pairs([samples.sides(at) for at in numbers], pad_id=pad_id)


def pair_count(batch: Batch) -> int:
    """Return the pairs of a batch."""
    return len(batch["input_ids"]) // 2


def completion_token_count(batch: Batch) -> int:
    """Return the tokens of answers in a batch."""
    return int(batch["completion_mask"].sum())
