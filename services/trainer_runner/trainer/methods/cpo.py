"""Contrastive preference optimisation (Xu et al. 2024, section 3.2)."""

# P = pairs of the batch

from __future__ import annotations

import torch
from torch.nn import functional

from lehr.training.methods.cpo import CpoHyperparameters, CpoLoss
from services.trainer_runner.trainer.loop import Setting
from services.trainer_runner.trainer.preference import PairLosses, ReferenceFreeTrainer, Sides


def cpo_losses(
    margins: torch.Tensor, *, loss_type: CpoLoss, beta: float, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Return the preference loss of each pair.

    ``sigmoid`` is Xu et al. 2024, equation 3, smoothed as in cDPO; ``hinge`` is that of SLiC (Zhao
    et al. 2023) with margin 1; ``ipo`` is Azar et al. 2023, equation 17. The reference of all of
    them is uniform, so it cancels.

    Args:
        margins: log-probabilities of good answers less those of bad ones, of ``ipo`` per token,
            shape (P,).

    Returns:
        Shape (P,).
    """
    if loss_type == "hinge":
        return torch.relu(1 - beta * margins)
    if loss_type == "ipo":
        return (margins - 1 / (2 * beta)) ** 2
    right = -functional.logsigmoid(beta * margins) * (1 - label_smoothing)
    return right - functional.logsigmoid(-beta * margins) * label_smoothing


class ContrastiveTrainer(ReferenceFreeTrainer):
    """Prefers good answers, held to them by cross-entropy in place of a reference."""

    def __init__(self, setting: Setting) -> None:
        self.own = setting.plan.spec.hyperparameters_as(CpoHyperparameters)
        self.nll_weight = self.own.cpo_alpha
        super().__init__(setting)

    def pair_losses(self, sides: Sides) -> PairLosses:
        """Return the preference part of the loss for each pair."""
        is_mean = self.own.loss_type == "ipo"
        chosen, rejected = sides.means if is_mean else (sides.chosen, sides.rejected)
        return PairLosses(
            losses=cpo_losses(
                chosen - rejected,
                loss_type=self.own.loss_type,
                beta=self.own.beta,
                label_smoothing=self.own.label_smoothing,
            ),
            chosen_logps=chosen,
            rejected_logps=rejected,
            beta=self.own.beta,
            more={},
        )


def trainer(setting: Setting) -> ContrastiveTrainer:
    """Return the trainer of this method."""
    return ContrastiveTrainer(setting)
