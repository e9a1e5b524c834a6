"""What methods share that learn from single answers, each of them wanted or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from lehr.samples.selection import Answers, Samples
from services.trainer_runner.trainer.data.batches import Batch
from services.trainer_runner.trainer.data.pairs import completion_token_count
from services.trainer_runner.trainer.data.unpaired import (
    AnswerList,
    answers_in_order,
    collate_answers,
)
from services.trainer_runner.trainer.loop import Loop, Mean, StepSums


class AnswerLoop(Loop):
    """Learns from answers; a term of the loss is an answer. A preference is two of them."""

    gives_others = False
    """Whether rows come with the answers of other rows."""

    def train_rows(self) -> AnswerList:
        """Return the answers by number."""
        return self._rows_of(self.setting.data.train)

    def collate(self, rows: Any) -> Batch:
        """Pad answers to one length."""
        return collate_answers(rows, pad_id=self.setting.pad_id)

    def evaluation_batches(self) -> Iterator[Batch]:
        """Yield the answers held out."""
        rows = self._rows_of(self.setting.data.validation)
        return answers_in_order(
            rows,
            rows.in_order(with_others=self.gives_others),
            size=self.args.per_device_eval_batch_size,
            pad_id=self.setting.pad_id,
        )

    def term_count(self, batch: Batch) -> int:
        """Return the answers of a batch."""
        return len(batch["label"])

    def trained_token_count(self, batch: Batch) -> int:
        """Return the tokens of answers in a batch."""
        return completion_token_count(batch)

    def charted(self, sums: StepSums) -> dict[str, float]:
        """Add how much more good answers are rewarded than bad ones, where there are both."""
        values = super().charted(sums)
        if {"rewards/chosen", "rewards/rejected"} <= values.keys():
            values["rewards/margins"] = values["rewards/chosen"] - values["rewards/rejected"]
        return values

    def _rows_of(self, samples: Samples) -> AnswerList:
        return AnswerList(Answers(samples), max_length=self.setting.data.facts.max_length)


def by_side(values: Mapping[str, float], labels: torch.Tensor) -> dict[str, float | Mean]:
    """Weigh means over the good or the bad answers of a pass by how many there were."""
    chosen = int(labels.sum())
    weights = {"chosen": chosen, "rejected": len(labels) - chosen}
    sides = {name: name.rpartition("/")[2] for name in values}
    return {
        name: Mean(value, weights[sides[name]]) if sides[name] in weights else value
        for name, value in values.items()
    }
