"""Batches of samples as tensors, in an order that only the seed and the epoch decide."""

# B = samples in the batch, T = positions of the longest of them

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from lehr.samples.selection import Sample, Samples

#: Label of a position that is not trained, and so of padding.
IGNORE = -100

Batch = dict[str, torch.Tensor]


def epoch_order(count: int, *, seed: int, epoch: int) -> list[int]:
    """Return the numbers 0 to ``count - 1`` as they are visited in pass ``epoch`` (from 0)."""
    order = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(order)  # noqa: S311 - repeatable on purpose
    return order


def collate(samples: Sequence[Sample], *, pad_id: int) -> Batch:
    """Pad samples on the right to one length.

    Returns:
        ``input_ids``, ``attention_mask`` and ``labels`` of shape (B, T), dtype int64. Padding is
        told from text by its place, so a pad token that is also the end token stays trained.
    """
    shape = (len(samples), max(map(len, samples)))
    ids_BT = np.full(shape, pad_id, dtype=np.int64)
    mask_BT = np.zeros(shape, dtype=np.int64)
    labels_BT = np.full(shape, IGNORE, dtype=np.int64)
    for row, sample in enumerate(samples):
        ids_BT[row, : len(sample)] = sample.token_ids
        mask_BT[row, : len(sample)] = 1
        labels_BT[row, : len(sample)] = sample.labels(IGNORE)
    return {
        "input_ids": torch.from_numpy(ids_BT),
        "attention_mask": torch.from_numpy(mask_BT),
        "labels": torch.from_numpy(labels_BT),
    }


class EpochBatches(Sampler[list[Any]]):  # type: ignore[misc]  # torch is not typed here
    """Numbers of the samples of each batch; ``epoch`` is set before each pass."""

    def __init__(self, count: int, *, batch_size: int, seed: int) -> None:
        self._count = count
        self._batch_size = batch_size
        self._seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return math.ceil(self._count / self._batch_size)

    def __iter__(self) -> Iterator[list[Any]]:
        keys = self.keys(epoch_order(self._count, seed=self._seed, epoch=self.epoch))
        for begin in range(0, self._count, self._batch_size):
            yield keys[begin : begin + self._batch_size]

    def keys(self, order: list[int]) -> list[Any]:
        """Return what rows are asked for by: their numbers."""
        return order


class SampleList(torch.utils.data.Dataset[Sample]):  # type: ignore[misc]  # nor is this
    """Samples by number."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, at: int) -> Sample:
        return self._samples[at]


def train_loader(
    rows: torch.utils.data.Dataset[Any],
    *,
    batches: EpochBatches,
    collate_fn: Callable[[Any], Batch],
) -> DataLoader[Batch]:
    """Return the loader of training batches; it draws nothing from the global random state."""
    return DataLoader(
        rows,
        batch_sampler=batches,
        collate_fn=collate_fn,
        num_workers=0,
        # Else each pass would draw its base seed from the generator that dropout uses.
        generator=torch.Generator(),
    )


def token_count(batch: Batch) -> int:
    """Count the tokens of a batch without padding."""
    packed = batch.get("token_count")
    return int(batch["attention_mask"].sum() if packed is None else packed)


def evaluation_batches(samples: Samples, *, batch_size: int, pad_id: int) -> Iterator[Batch]:
    """Yield the validation rows once, in their own order."""
    for begin in range(0, len(samples), batch_size):
        numbers = range(begin, min(begin + batch_size, len(samples)))
        yield collate([samples[at] for at in numbers], pad_id=pad_id)
