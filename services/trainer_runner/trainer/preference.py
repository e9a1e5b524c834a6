"""What methods share that learn from pairs of answers, and those of them without a reference."""

# P = pairs of the batch, T = positions of the longest side

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from services.trainer_runner.course import Evaluation
from services.trainer_runner.trainer.data.batches import Batch
from services.trainer_runner.trainer.data.pairs import (
    PairList,
    collate_pairs,
    completion_token_count,
    pair_count,
    pairs_in_order,
)
from services.trainer_runner.trainer.logps import answer_logps, predicted_counts
from services.trainer_runner.trainer.loop import Loop, Mean, Means
from services.trainer_runner.trainer.own import OwnTrainer


class PairLoop(Loop):
    """Learns from pairs; a term of the loss is a pair."""

    pairs_per_token = 1.0
    """Pairs of the step, or of an evaluation, divided by the predicted tokens of their good
    answers: turns a sum over tokens into one whose mean over pairs is the mean over tokens."""

    def train_rows(self) -> torch.utils.data.Dataset[Any]:
        """Return the pairs by number."""
        return PairList(self.setting.data.train)

    def collate(self, rows: Any) -> Batch:
        """Put the chosen sides before the rejected ones, padded to one length."""
        return collate_pairs(rows, pad_id=self.setting.pad_id)

    def evaluation_batches(self) -> Iterator[Batch]:
        """Yield the pairs held out."""
        return pairs_in_order(
            self.setting.data.validation,
            batch_size=self.args.per_device_eval_batch_size,
            pad_id=self.setting.pad_id,
        )

    def term_count(self, batch: Batch) -> int:
        """Return the pairs of a batch."""
        return pair_count(batch)

    def trained_token_count(self, batch: Batch) -> int:
        """Return the tokens of both answers of all pairs."""
        return completion_token_count(batch)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], int]:
        """Return the batches of one optimiser step and the number of their pairs."""
        batches, pairs = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.pairs_per_token = pairs / max(sum(map(chosen_token_count, batches)), 1)
        return batches, pairs

    def evaluate_rows(self, go_on: Callable[[], bool]) -> Evaluation | None:
        """Return the mean loss of the pairs held out, or None once ``go_on`` says no."""
        self.pairs_per_token = self._validation_pairs_per_token
        return super().evaluate_rows(go_on)

    @cached_property
    def _validation_pairs_per_token(self) -> float:
        pairs = self.setting.data.validation
        chosen = (pairs.sides(at)[0] for at in range(len(pairs)))
        tokens = sum(int(np.count_nonzero(side.trained[1:])) for side in chosen)
        return len(pairs) / max(tokens, 1)


def chosen_token_count(batch: Batch) -> int:
    """Return the predicted tokens of the good answers of a batch."""
    return int(predicted_counts(batch)[: pair_count(batch)].sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sides:
    """Log-probabilities of whole answers in nats, all of shape (P,)."""

    chosen: torch.Tensor
    rejected: torch.Tensor
    chosen_counts: torch.Tensor
    """Predicted tokens of each good answer, at least 1."""
    rejected_counts: torch.Tensor

    @property
    def means(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return chosen and rejected log-probabilities per token."""
        return self.chosen / self.chosen_counts, self.rejected / self.rejected_counts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairLosses:
    """What a method makes of ``Sides``, all of shape (P,)."""

    losses: torch.Tensor
    chosen_logps: torch.Tensor
    """Summed or per token, as the method compares them."""
    rejected_logps: torch.Tensor
    beta: float
    """What log-probabilities are scaled by to be called rewards."""
    more: Mapping[str, torch.Tensor]
    """What else to chart."""


class ReferenceFreeTrainer(PairLoop, OwnTrainer):
    """Compares pairs of answers by the model that is trained alone."""

    nll_weight = 0.0
    """Of the cross-entropy of the good answers' tokens, a mean over all tokens of the step."""

    @abstractmethod
    def pair_losses(self, sides: Sides) -> PairLosses:
        """Return the loss of each pair, without the cross-entropy."""

    def loss_sum(self, model: Any, batch: Batch) -> tuple[torch.Tensor, Means]:
        """Return the loss added up over pairs, and rewards and log-probabilities."""
        sides = sides_of(answer_logps(model, batch), predicted_counts(batch))
        made = self.pair_losses(sides)
        total, values = made.losses.sum(), charts_of(made)
        if self.nll_weight:
            nll = -sides.chosen.sum()
            total = total + self.nll_weight * self.pairs_per_token * nll
            tokens = max(chosen_token_count(batch), 1)
            values["nll_loss"] = Mean(nll.item() / tokens, tokens)
        return total, values


def sides_of(logps: torch.Tensor, counts: torch.Tensor) -> Sides:
    """Add up log-probabilities of tokens, shape (2 P, T - 1), and split them by side."""
    chosen, rejected = logps.sum(dim=1).chunk(2)
    chosen_counts, rejected_counts = counts.clamp(min=1).chunk(2)
    return Sides(
        chosen=chosen,
        rejected=rejected,
        chosen_counts=chosen_counts,
        rejected_counts=rejected_counts,
    )


def charts_of(made: PairLosses) -> dict[str, float | Mean]:
    """Return the means over pairs under trl's names."""
    chosen = made.beta * made.chosen_logps.detach()
    rejected = made.beta * made.rejected_logps.detach()
    columns: Iterable[tuple[str, torch.Tensor]] = (
        ("rewards/chosen", chosen),
        ("rewards/rejected", rejected),
        ("rewards/margins", chosen - rejected),
        ("rewards/accuracies", (chosen > rejected).float()),
        ("logps/chosen", made.chosen_logps),
        ("logps/rejected", made.rejected_logps),
        *made.more.items(),
    )
    return {name: column.detach().mean().item() for name, column in columns}
