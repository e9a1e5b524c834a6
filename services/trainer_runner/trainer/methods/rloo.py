"""REINFORCE leave-one-out (Ahmadian et al. 2024, equation 8), with trl's clipped ratios.

The reward of a completion is what it earns less ``beta`` times how much likelier it has become than
the base model has it (equation 3); the baseline is the mean of the others to the same prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from trl import RLOOConfig, RLOOTrainer

from lehr.training.methods.rloo import RlooHyperparameters
from services.trainer_runner.trainer.data.batches import Batch
from services.trainer_runner.trainer.loop import Mean, Means, Setting
from services.trainer_runner.trainer.online.advantages import leave_one_out, share_without_spread
from services.trainer_runner.trainer.online.groups import GroupTrainer
from services.trainer_runner.trainer.online.writing import Completion


class LeaveOneOutTrainer(GroupTrainer, RLOOTrainer):  # type: ignore[misc]  # trl is not typed here
    """Raises whole completions that earn more than the others to the same prompt."""

    own: RlooHyperparameters

    def __init__(self, setting: Setting) -> None:
        self.begin_with(setting, RLOOConfig)

    def rolled_out(self, numbers: Sequence[int], completions: Sequence[Completion]) -> Batch:
        """Return completions with their advantages and how likely they were when written."""
        own, size = self.own, self.own.num_generations
        batch = self.padded(self.prompts_of(numbers), completions)
        mask = batch["completion_mask"]
        rewards = self.judged(numbers, completions)
        self.chart({"frac_reward_zero_std": share_without_spread(rewards, size=size)})
        logps = self.completion_logps(self.model, batch)
        batch["old_logps"] = (logps * mask).sum(dim=1)
        if own.beta:
            kl = ((logps - self.reference_logps(batch)) * mask).sum(dim=1)
            self.chart({"kl": kl.mean().item()})
            rewards = rewards - own.beta * kl
        batch["advantages"] = leave_one_out(rewards, size=size, normalize=own.normalize_advantages)
        return batch

    def term_count(self, batch: Batch) -> int:
        """Return the completions of a batch."""
        return len(batch["advantages"])

    def loss_sum(self, model: Any, batch: Batch) -> tuple[torch.Tensor, Means]:
        """Return trl's mean loss of the pass times its completions."""
        loss, told = self.pass_loss(model, batch)
        values: dict[str, float | Mean] = dict(told)
        values["entropy"] = Mean(told["entropy"], int(batch["completion_mask"].sum()))
        return loss * self.term_count(batch), values


def trainer(setting: Setting) -> LeaveOneOutTrainer:
    """Return the trainer of this method."""
    return LeaveOneOutTrainer(setting)
