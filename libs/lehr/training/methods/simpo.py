"""Simple preference optimisation: likelihood per token, a margin, and no reference model."""

from __future__ import annotations

from typing import Literal

from lehr.training.methods.base import Hyperparameters, Method
from lehr.training.section import Fraction, NotNegative, Positive


class SimpoHyperparameters(Hyperparameters):
    """Names of trl.experimental CPOConfig; defaults of the paper's Llama-3 base model."""

    type: Literal["simpo"] = "simpo"
    beta: Positive = 2.0
    """Scale of log-probabilities per token (Meng et al. 2024, hyperparameters of Llama-3-Base)."""
    simpo_gamma: NotNegative = 1.0
    """Margin of rewards that is aimed at: half of ``beta``, as for the same model."""
    label_smoothing: Fraction = 0.0
    """Share of preferences that are taken to be wrong (trl CPOConfig)."""


METHOD = Method(
    method_id="simpo",
    title="Simple preference optimisation",
    signal="preference",
    source="Meng et al. 2024, arXiv 2405.14734, equation 6",
    hyperparameters=SimpoHyperparameters,
    # trl CPOConfig has 1e-6 for all weights; adapters take about ten times that.
    defaults={"training": {"learning_rate": 1e-5}},
    full_defaults={"training": {"learning_rate": 1e-6}},
)
