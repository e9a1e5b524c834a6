"""Odds-ratio preference optimisation (Hong et al. 2024, equations 4 to 7)."""

# P = pairs of the batch

from __future__ import annotations

import torch
from torch.nn import functional

from lehr.training.methods.orpo import OrpoHyperparameters
from services.trainer_runner.trainer.loop import Setting
from services.trainer_runner.trainer.preference import PairLosses, ReferenceFreeTrainer, Sides


def log_odds_ratio(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """Return the log of how much greater the odds of good answers are than those of bad ones.

    The odds of an answer are p / (1 - p) with p the geometric mean of its tokens' probabilities
    (equations 3, 4 and 5).

    Args:
        chosen, rejected: log-probabilities per token, at most 0, shape (P,).

    Returns:
        Shape (P,).
    """
    return (chosen - rejected) - (_log_of_rest(chosen) - _log_of_rest(rejected))


def _log_of_rest(logps: torch.Tensor) -> torch.Tensor:
    """Return log(1 - exp(x)); finite where a probability is rounded to 1."""
    below = logps.clamp(max=-torch.finfo(logps.dtype).tiny)
    return torch.log(-torch.expm1(below))


class OddsRatioTrainer(ReferenceFreeTrainer):
    """Trains good answers by cross-entropy, and by their odds against bad ones.

    Only answers are trained: equation 6 has the log-likelihood of the answer given its prompt,
    where the authors' code and trl's ORPOTrainer train the prompt's tokens too.
    """

    nll_weight = 1.0

    def __init__(self, setting: Setting) -> None:
        self.beta = setting.plan.spec.hyperparameters_as(OrpoHyperparameters).beta
        super().__init__(setting)

    def pair_losses(self, sides: Sides) -> PairLosses:
        """Return ``-beta log sigmoid(log odds ratio)``, equation 7 by its weight in equation 6."""
        chosen, rejected = sides.means
        log_odds = log_odds_ratio(chosen, rejected)
        ratio = functional.logsigmoid(log_odds)
        return PairLosses(
            losses=-self.beta * ratio,
            chosen_logps=chosen,
            rejected_logps=rejected,
            beta=self.beta,
            more={"log_odds_ratio": ratio, "log_odds_chosen": log_odds},
        )


def trainer(setting: Setting) -> OddsRatioTrainer:
    """Return the trainer of this method."""
    return OddsRatioTrainer(setting)
