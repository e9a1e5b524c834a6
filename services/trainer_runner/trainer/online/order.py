"""The order of prompts where each is answered several times, and answers are used again."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lehr.training.spec import TrainingSpec
from services.trainer_runner.trainer.data.batches import EpochBatches, epoch_order


class NumberList(torch.utils.data.Dataset[int]):  # type: ignore[misc]  # torch is not typed here
    """Prompts by number, which is all that batches hold of them."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> int:
        return at


class GroupBatches(EpochBatches):
    """Numbers of prompts, each ``group`` times in a row.

    The rows of an optimiser step come back ``iterations`` times, but for an epoch's last step
    where it is smaller, so that steps begin where batches of them do.
    """

    def __init__(
        self, prompts: int, *, row_count: int, training: TrainingSpec, group: int, iterations: int
    ) -> None:
        size = training.per_device_train_batch_size
        super().__init__(row_count, batch_size=size, seed=training.seed)
        self._prompts = prompts
        self._rows_per_step = training.rows_per_step
        self._group = group
        self._iterations = iterations
        self._steps_per_epoch = -(-len(self) // training.gradient_accumulation_steps)

    def __iter__(self) -> Iterator[list[int]]:
        order = epoch_order(self._prompts, seed=self._seed, epoch=self.epoch)
        rows = [number for number in order for _ in range(self._group)]
        for begin in range(0, len(rows), self._rows_per_step):
            step = rows[begin : begin + self._rows_per_step]
            times = self._iterations if len(step) == self._rows_per_step else 1
            for _ in range(times):
                for at in range(0, len(step), self._batch_size):
                    yield step[at : at + self._batch_size]

    def iteration_after(self, steps: int) -> int:
        """Return which use of its completions the next optimiser step makes, from 0."""
        return (steps % self._steps_per_epoch) % self._iterations
