"""Several samples in one row of a batch, none of which sees another."""

# B = rows of the batch, T = positions of the longest of them

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lehr.samples.selection import Sample, Samples
from services.trainer_runner.trainer.data.batches import IGNORE, Batch

Packs = Sequence[Sequence[int]]
"""Numbers of the samples of each row."""


def collate_packs(packs: Sequence[Sequence[Sample]], *, pad_id: int) -> Batch:
    """Put the samples of each pack behind each other, and pad the rows to one length.

    Positions begin again at 0 with each sample, and there is no attention mask: that is how models
    of transformers keep the samples of a row apart. Padding counts as a sample of its own.

    Returns:
        ``input_ids``, ``position_ids`` and ``labels`` of shape (B, T), dtype int64, and
        ``token_count``, a scalar, without padding. The first token of a sample is no target: what
        stands before it belongs to another.
    """
    counts = [sum(map(len, pack)) for pack in packs]
    shape = (len(packs), max(counts))
    ids_BT = np.full(shape, pad_id, dtype=np.int64)
    labels_BT = np.full(shape, IGNORE, dtype=np.int64)
    positions_BT = np.zeros(shape, dtype=np.int64)
    for row, (pack, count) in enumerate(zip(packs, counts, strict=True)):
        begin = 0
        for sample in pack:
            end = begin + len(sample)
            ids_BT[row, begin:end] = sample.token_ids
            labels_BT[row, begin + 1 : end] = sample.labels(IGNORE)[1:]
            positions_BT[row, begin:end] = np.arange(len(sample))
            begin = end
        positions_BT[row, count:] = np.arange(shape[1] - count)
    return {
        "input_ids": torch.from_numpy(ids_BT),
        "position_ids": torch.from_numpy(positions_BT),
        "labels": torch.from_numpy(labels_BT),
        "token_count": torch.tensor(sum(counts)),
    }


class PackedRows(torch.utils.data.Dataset[list[Sample]]):  # type: ignore[misc]  # not typed here
    """The samples of each row, by number of the row."""

    def __init__(self, samples: Samples, packs: Packs) -> None:
        self._samples = samples
        self._packs = packs

    def __len__(self) -> int:
        return len(self._packs)

    def __getitem__(self, at: int) -> list[Sample]:
        return [self._samples[number] for number in self._packs[at]]
