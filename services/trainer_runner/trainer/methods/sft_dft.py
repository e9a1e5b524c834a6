"""Dynamic fine-tuning: each token weighs as much as it is likely (Wu et al. 2025, equation 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from services.trainer_runner.trainer.data.batches import Batch
from services.trainer_runner.trainer.loop import Setting
from services.trainer_runner.trainer.methods.sft import AnswerTrainer, answer_losses


class DynamicTrainer(AnswerTrainer):
    """Trains answers with weighted tokens, and measures them with plain cross-entropy.

    The weighted loss is small for unlikely answers too, so it is no measure of what is best.
    """

    def loss_sum(self, model: Any, batch: Batch) -> tuple[torch.Tensor, Mapping[str, float]]:
        """Return the sum of ``-p log p`` with the first ``p`` held constant."""
        losses = answer_losses(model, batch)
        nats = losses.detach().sum().item() / max(self.term_count(batch), 1)
        return (torch.exp(-losses.detach()) * losses).sum(), {"cross_entropy": nats}

    def evaluation_loss_sum(
        self, model: Any, batch: Batch
    ) -> tuple[torch.Tensor, Mapping[str, float]]:
        """Return the cross-entropy of the answers' tokens, in nats."""
        return super().loss_sum(model, batch)


def trainer(setting: Setting) -> DynamicTrainer:
    """Return the trainer of this method."""
    return DynamicTrainer(setting)
