"""Group relative policy optimisation (Shao et al. 2024, equation 3) and its variants, by trl.

What a loss is a mean of decides what is counted over an optimiser step: tokens where trl adds
tokens up, completions where it takes the mean of each first. So a step cut into passes is the same
as one big pass, which trl promises for ``dapo`` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from trl import GRPOConfig, GRPOTrainer

from lehr.training.methods.grpo import GrpoHyperparameters
from services.trainer_runner.trainer.data.batches import Batch
from services.trainer_runner.trainer.loop import Mean, Means, Setting
from services.trainer_runner.trainer.online.advantages import (
    relative_to_group,
    share_without_spread,
)
from services.trainer_runner.trainer.online.groups import GroupTrainer, weighed
from services.trainer_runner.trainer.online.writing import Completion

#: Losses that are a mean over tokens; the others are one over completions.
_OF_TOKENS = frozenset({"bnpo", "dapo", "cispo", "vespo"})


class GroupRelativeTrainer(GroupTrainer, GRPOTrainer):  # type: ignore[misc]  # trl is not typed
    """Raises completions that earn more than the others to the same prompt."""

    own: GrpoHyperparameters

    def __init__(self, setting: Setting) -> None:
        own = setting.plan.spec.hyperparameters_as(GrpoHyperparameters)
        self.begin_with(
            setting,
            GRPOConfig,
            loss_type=own.loss_type,
            importance_sampling_level=own.importance_sampling_level,
            delta=own.delta,
            mask_truncated_completions=own.mask_truncated_completions,
            sapo_temperature_neg=own.sapo_temperature_neg,
            sapo_temperature_pos=own.sapo_temperature_pos,
            vespo_k_pos=own.vespo_k_pos,
            vespo_lambda_pos=own.vespo_lambda_pos,
            vespo_k_neg=own.vespo_k_neg,
            vespo_lambda_neg=own.vespo_lambda_neg,
            # Shares and means over the tokens of a pass, which its size would decide.
            top_entropy_quantile=1.0,
            entropy_coef=0.0,
            use_adaptive_entropy=False,
            off_policy_mask_threshold=None,
            use_bias_correction_kl=True,
            cast_lm_head_to_fp32=False,
        )
        self.beta = own.beta

    def rolled_out(self, numbers: Sequence[int], completions: Sequence[Completion]) -> Batch:
        """Return completions with their advantages, and log-probabilities to compare with."""
        own, size = self.own, self.own.num_generations
        batch = self.padded(self.prompts_of(numbers), completions)
        if own.mask_truncated_completions:
            is_whole = torch.tensor([one.is_whole for one in completions], device=self.args.device)
            batch["completion_mask"] = batch["completion_mask"] * is_whole.unsqueeze(1)
            batch["trained_token_count"] = batch["completion_mask"].sum(dim=1)
        rewards = self.judged(numbers, completions)
        batch["advantages"] = relative_to_group(rewards, size=size, scale=own.scale_rewards)
        self.chart({"frac_reward_zero_std": share_without_spread(rewards, size=size)})
        if own.num_iterations > 1:
            batch["old_per_token_logps"] = self.completion_logps(self.model, batch)
        if own.beta:
            batch["ref_per_token_logps"] = self.reference_logps(batch)
        return batch

    def term_count(self, batch: Batch) -> int:
        """Return the tokens or the completions that the loss is a mean of."""
        if self.own.loss_type in _OF_TOKENS:
            return int(batch["completion_mask"].sum())
        return len(batch["completion_mask"])

    def loss_sum(self, model: Any, batch: Batch) -> tuple[torch.Tensor, Means]:
        """Return trl's mean loss of the pass times its terms."""
        tokens = batch["completion_mask"].sum()
        loss, told = self.pass_loss(model, {**batch, "num_items_in_batch": tokens})
        values = dict(weighed(told, int(tokens)))
        if self.own.importance_sampling_level == "sequence":
            rows = len(batch["completion_mask"])
            clipped = {name: value for name, value in told.items() if "clip_ratio" in name}
            values.update({name: Mean(value, rows) for name, value in clipped.items()})
        return loss * self.term_count(batch), values


def trainer(setting: Setting) -> GroupRelativeTrainer:
    """Return the trainer of this method."""
    return GroupRelativeTrainer(setting)
