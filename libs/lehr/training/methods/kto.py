"""Kahneman-Tversky optimisation: good and bad answers one by one, against a reference."""

from __future__ import annotations

from typing import Literal

from lehr.training.methods.base import Hyperparameters, Method
from lehr.training.section import Positive


class KtoHyperparameters(Hyperparameters):
    """Names and defaults of trl KTOConfig."""

    type: Literal["kto"] = "kto"
    loss_type: Literal["kto", "apo_zero_unpaired"] = "kto"
    """The paper's, or that of D'Oosterlinck et al. 2024, equation 7, for single answers."""
    beta: Positive = 0.1
    """How strongly the model is held to the reference (Ethayarajh et al. 2024, section 4)."""
    desirable_weight: Positive = 1.0
    """Weight of good answers; lower it, or raise the other, where they are the majority
    (equation 8: good answers times their weight, divided by bad ones times theirs, is 1 to 4/3)."""
    undesirable_weight: Positive = 1.0
    """Weight of bad answers."""

    @property
    def answers_per_step_min(self) -> int:
        """``kto`` gives each prompt of a step the answer of another one."""
        return 2 if self.loss_type == "kto" else 1


METHOD = Method(
    method_id="kto",
    title="Kahneman-Tversky optimisation",
    signal="unpaired",
    source="Ethayarajh et al. 2024, arXiv 2402.01306, equation 7; by trl KTOTrainer",
    hyperparameters=KtoHyperparameters,
    # trl KTOConfig has 1e-6 for all weights; adapters take about ten times that.
    defaults={"training": {"learning_rate": 1e-5}},
    full_defaults={"training": {"learning_rate": 1e-6}},
)
