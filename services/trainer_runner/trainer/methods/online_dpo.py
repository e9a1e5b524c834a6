"""Online direct preference optimisation (Guo et al. 2024, algorithm 1).

The model writes two completions to each prompt; the one that earns more is the good one of a pair,
of which the loss is that of DPO. Pairs that earn the same tell nothing and are left out.
"""

# R = pairs of a step, B = pairs of a pass, T = positions of the longest prompt and completion

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from lehr.training.methods.online_dpo import OnlineDpoHyperparameters
from services.trainer_runner.trainer.data.batches import Batch
from services.trainer_runner.trainer.logps import answer_logps
from services.trainer_runner.trainer.loop import Mean, Means, Setting
from services.trainer_runner.trainer.online.loop import RewardedLoop
from services.trainer_runner.trainer.online.writing import Completion, right_padded
from services.trainer_runner.trainer.own import OwnTrainer, has_adapter, prepare

_SIDES = ("input_ids", "attention_mask", "completion_mask")


class OnlinePreferenceTrainer(RewardedLoop, OwnTrainer):
    """Raises the better of two completions of its own; a term of the loss is a pair."""

    own: OnlineDpoHyperparameters
    completions_per_row = 2

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.load_judge()
        self.reference = None
        if not has_adapter(self.model):
            self.reference = setting.reference().to(self.args.device).eval()
            prepare(self.reference)

    def rolled_out(self, numbers: Sequence[int], completions: Sequence[Completion]) -> Batch:
        """Return pairs, the better completion first, and how likely the reference has them."""
        batch = self._pairs(numbers, completions)
        rewards = self.judged(numbers, completions).view(-1, 2)
        order = torch.where(rewards[:, :1] >= rewards[:, 1:], 0, 1)
        order = torch.cat([order, 1 - order], dim=1)
        for name in _SIDES:
            places = order.unsqueeze(2).expand_as(batch[name])
            batch[name] = batch[name].gather(1, places)
        batch["is_told"] = rewards[:, 0] != rewards[:, 1]
        self.chart({"pairs/tied": 1.0 - batch["is_told"].float().mean().item()})
        batch["reference_logps"] = self._reference_logps(batch)
        return batch

    def _pairs(self, numbers: Sequence[int], completions: Sequence[Completion]) -> Batch:
        """Return both sides of each pair: three tensors of shape (R, 2, T), two of shape (R,)."""
        prompts = self.prompts_of(numbers)
        texts = [
            (*prompt.tolist(), *one.token_ids)
            for prompt, one in zip(prompts, completions, strict=True)
        ]
        ids, mask = right_padded(texts, pad_id=self.setting.pad_id)
        prompt_lengths = torch.tensor([len(prompt) for prompt in prompts]).unsqueeze(1)
        answered = mask * (torch.arange(ids.shape[1]) >= prompt_lengths)
        shape = (len(numbers), 2, -1)
        batch = {
            "input_ids": ids.view(shape),
            "attention_mask": mask.view(shape),
            "completion_mask": answered.view(shape),
            "token_count": mask.view(shape).sum(dim=(1, 2)),
            "trained_token_count": answered.view(shape).sum(dim=(1, 2)),
        }
        return {name: values.to(self.args.device) for name, values in batch.items()}

    def _reference_logps(self, batch: Batch) -> torch.Tensor:
        """Return how likely the base model has both completions, shape (R, 2), in nats."""
        size = self.args.per_device_train_batch_size
        found: list[torch.Tensor] = []
        for begin in range(0, len(batch["is_told"]), size):
            part = {name: batch[name][begin : begin + size] for name in _SIDES}
            with self.compute_loss_context_manager():
                if self.reference is not None:
                    found.append(pair_logps(self.reference, part))
                else:
                    with self.model.disable_adapter():
                        found.append(pair_logps(self.model, part))
        return torch.cat(found)

    def term_count(self, batch: Batch) -> int:
        """Return the pairs of which one side earned more."""
        return int(batch["is_told"].sum())

    def loss_sum(self, model: Any, batch: Batch) -> tuple[torch.Tensor, Means]:
        """Return the loss added up over the pairs that tell something."""
        told = batch["is_told"]
        logps = pair_logps(model, batch)
        rewards = self.own.beta * (logps - batch["reference_logps"])
        losses = preference_losses(
            rewards[:, 0] - rewards[:, 1], beta=self.own.beta, loss_type=self.own.loss_type
        )
        return losses[told].sum(), _charts(logps.detach()[told], rewards.detach()[told])


def preference_losses(margins: torch.Tensor, *, beta: float, loss_type: str) -> torch.Tensor:
    """Return the loss of each pair, shape (B,).

    Args:
        margins: beta times how much more likely the good side became than the bad one, (B,).
        beta: the scale of ``margins``.
        loss_type: ``sigmoid`` (Rafailov et al. 2023, equation 7) or ``ipo`` (Azar et al. 2023,
            equation 17).
    """
    if loss_type == "ipo":
        return (margins / beta - 1 / (2 * beta)) ** 2
    return -functional.logsigmoid(margins)


def pair_logps(model: Any, batch: Batch) -> torch.Tensor:
    """Return log-probabilities of whole completions, shape (B, 2), in nats."""
    pairs = len(batch["input_ids"])
    flat = {name: batch[name].flatten(0, 1) for name in _SIDES}
    return answer_logps(model, flat).sum(dim=1).view(pairs, 2)


def _charts(logps: torch.Tensor, rewards: torch.Tensor) -> Means:
    margins = rewards[:, 0] - rewards[:, 1]
    columns = {
        "rewards/chosen": rewards[:, 0],
        "rewards/rejected": rewards[:, 1],
        "rewards/margins": margins,
        "rewards/accuracies": (margins > 0).float(),
        "logps/chosen": logps[:, 0],
        "logps/rejected": logps[:, 1],
    }
    pairs = len(margins)
    return {name: Mean(one.mean().item(), pairs) for name, one in columns.items()} if pairs else {}


def trainer(setting: Setting) -> OnlinePreferenceTrainer:
    """Return the trainer of this method."""
    return OnlinePreferenceTrainer(setting)
