"""Odds-ratio preference optimisation: fine-tuning and preferences in one loss."""

from __future__ import annotations

from typing import Literal

from lehr.training.methods.base import Hyperparameters, Method
from lehr.training.section import Positive


class OrpoHyperparameters(Hyperparameters):
    """Names and defaults of trl.experimental ORPOConfig."""

    type: Literal["orpo"] = "orpo"
    beta: Positive = 0.1
    """Weight of the odds ratio beside cross-entropy (lambda of Hong et al. 2024, equation 6)."""


METHOD = Method(
    method_id="orpo",
    title="Odds-ratio preference optimisation",
    signal="preference",
    source="Hong et al. 2024, arXiv 2403.07691, equations 6 and 7",
    hyperparameters=OrpoHyperparameters,
    # trl's example of ORPO has 8e-6 for all weights and ten times that for adapters.
    defaults={"training": {"learning_rate": 8e-5}},
    full_defaults={"training": {"learning_rate": 8e-6}},
)
