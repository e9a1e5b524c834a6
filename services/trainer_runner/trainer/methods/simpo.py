"""Simple preference optimisation (Meng et al. 2024, equation 6)."""

# P = pairs of the batch

from __future__ import annotations

import torch
from torch.nn import functional

from lehr.training.methods.simpo import SimpoHyperparameters
from services.trainer_runner.trainer.loop import Setting
from services.trainer_runner.trainer.preference import PairLosses, ReferenceFreeTrainer, Sides


def simpo_losses(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    *,
    beta: float,
    gamma: float,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Return ``-log sigmoid(beta (chosen - rejected) - gamma)``, smoothed as in cDPO.

    Args:
        chosen, rejected: log-probabilities per token, shape (P,).

    Returns:
        Shape (P,).
    """
    margins = beta * (chosen - rejected) - gamma
    right = -functional.logsigmoid(margins) * (1 - label_smoothing)
    return right - functional.logsigmoid(-margins) * label_smoothing


class SimpleTrainer(ReferenceFreeTrainer):
    """Wants good answers to be likelier per token than bad ones by a margin."""

    def __init__(self, setting: Setting) -> None:
        self.own = setting.plan.spec.hyperparameters_as(SimpoHyperparameters)
        super().__init__(setting)

    def pair_losses(self, sides: Sides) -> PairLosses:
        """Return equation 6 for each pair."""
        chosen, rejected = sides.means
        return PairLosses(
            losses=simpo_losses(
                chosen,
                rejected,
                beta=self.own.beta,
                gamma=self.own.simpo_gamma,
                label_smoothing=self.own.label_smoothing,
            ),
            chosen_logps=chosen,
            rejected_logps=rejected,
            beta=self.own.beta,
            more={},
        )


def trainer(setting: Setting) -> SimpleTrainer:
    """Return the trainer of this method."""
    return SimpleTrainer(setting)
