"""Binary classifier optimisation (Jung et al. 2024): is an answer good, by its shifted reward?

The shift is the mean reward of all answers of the run so far, those of the step included. Of a step
of several passes rewards are computed once more before the first of them, so that it does not
matter how a step is cut.
"""

# R = answers of the batch

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from lehr.training.methods.bco import BcoHyperparameters
from services.trainer_runner.trainer.data.batches import Batch
from services.trainer_runner.trainer.logps import answer_logps
from services.trainer_runner.trainer.loop import Means, Setting
from services.trainer_runner.trainer.own import OwnTrainer, prepare, reference_of
from services.trainer_runner.trainer.unpaired import AnswerLoop, by_side

#: Log-probabilities by the reference, kept beside a batch of which they are known.
_REFERENCE = "ref_logps"


@dataclass(frozen=True, slots=True)
class RewardSum:
    """Rewards of all answers that were trained."""

    total: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float:
        """The shift; 0 as long as there are none."""
        return self.total / self.count if self.count else 0.0

    def plus(self, rewards: torch.Tensor) -> RewardSum:
        """Return the sum with more rewards, shape (R,)."""
        return RewardSum(self.total + rewards.sum().item(), self.count + len(rewards))


def bco_losses(rewards: torch.Tensor, labels: torch.Tensor, *, shift: float) -> torch.Tensor:
    """Return the cross-entropy of telling good answers from bad ones.

    Args:
        rewards: beta times the log-ratio of model and reference, shape (R,).
        labels: true where the answer is good, shape (R,).

    Returns:
        Shape (R,), in nats.
    """
    logits = rewards - shift
    return -functional.logsigmoid(torch.where(labels, logits, -logits))


class BinaryClassifierTrainer(AnswerLoop, OwnTrainer):
    """Trains the model's reward as a classifier; the reference is the base model."""

    def __init__(self, setting: Setting) -> None:
        self.beta = setting.plan.spec.hyperparameters_as(BcoHyperparameters).beta
        super().__init__(setting)
        self.reference = reference_of(setting)
        if self.reference is not None:
            prepare(self.reference)
            self.reference = self.accelerator.prepare_model(self.reference, evaluation_mode=True)
        self._rewards = self._rewards_before = RewardSum()
        self._is_shift_known = False

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], int]:
        """Return the batches of one optimiser step; of several, the shift is known after this."""
        batches, answers = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._rewards_before = self._rewards
        self._is_shift_known = len(batches) > 1
        if self._is_shift_known:
            self.model.eval()
            for batch in batches:
                with torch.no_grad(), self.compute_loss_context_manager():
                    inputs = self._prepare_inputs(batch)
                    batch[_REFERENCE] = self._reference_logps(inputs)
                    logps = answer_logps(self.model, inputs).sum(dim=1)
                self._rewards = self._rewards.plus(self.beta * (logps - batch[_REFERENCE]))
        return batches, answers

    def loss_sum(self, model: Any, batch: Batch) -> tuple[torch.Tensor, Means]:
        """Return the cross-entropy added up over answers, and rewards and log-probabilities."""
        logps = answer_logps(model, batch).sum(dim=1)
        known = batch.get(_REFERENCE)
        rewards = self.beta * (logps - (self._reference_logps(batch) if known is None else known))
        if model.training and not self._is_shift_known:
            self._rewards = self._rewards.plus(rewards.detach())
        shift, labels = self._rewards.mean, batch["label"]
        values = {"delta": shift}
        for side, is_of_it in (("chosen", labels), ("rejected", ~labels)):
            if is_of_it.any():
                values[f"rewards/{side}"] = rewards[is_of_it].detach().mean().item()
                values[f"logps/{side}"] = logps[is_of_it].detach().mean().item()
        return bco_losses(rewards, labels, shift=shift).sum(), by_side(values, labels)

    def own_state(self) -> dict[str, Any]:
        """Return the rewards so far."""
        return {"reward_total": self._rewards.total, "reward_count": self._rewards.count}

    def load_own_state(self, told: Mapping[str, Any]) -> None:
        """Go on from the rewards of a checkpoint."""
        self._rewards = RewardSum(told["reward_total"], told["reward_count"])
        self._rewards_before = self._rewards

    def drop_step(self) -> None:
        """Take back the rewards of a step that is not finished."""
        self._rewards = self._rewards_before

    def _reference_logps(self, inputs: Batch) -> torch.Tensor:
        """Return the log-probability of each answer by the reference, shape (R,)."""
        with torch.no_grad():
            if self.reference is not None:
                return answer_logps(self.reference, inputs).sum(dim=1)
            with self.accelerator.unwrap_model(self.model).disable_adapter():
                return answer_logps(self.model, inputs).sum(dim=1)


def trainer(setting: Setting) -> BinaryClassifierTrainer:
    """Return the trainer of this method."""
    return BinaryClassifierTrainer(setting)
