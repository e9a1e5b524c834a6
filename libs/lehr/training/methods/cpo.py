"""Contrastive preference optimisation: preferences beside cross-entropy, without a reference."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from lehr.training.methods.base import Hyperparameters, Method
from lehr.training.section import Fraction, NotNegative, Positive

CpoLoss = Literal["sigmoid", "hinge", "ipo"]
"""Names of trl.experimental CPOConfig; ``sigmoid`` is the paper's, its ``simpo`` a method here."""


class CpoHyperparameters(Hyperparameters):
    """Names and defaults of trl.experimental CPOConfig."""

    type: Literal["cpo"] = "cpo"
    loss_type: CpoLoss = "sigmoid"
    beta: Positive = 0.1
    """Scale of log-probabilities (trl CPOConfig); tau of ``ipo``."""
    cpo_alpha: NotNegative = 1.0
    """Weight of the good answers' cross-entropy; 1 is the paper's (Xu et al. 2024, section 3.2)."""
    label_smoothing: Fraction = 0.0
    """Share of preferences that are taken to be wrong; of ``sigmoid`` only."""

    @model_validator(mode="after")
    def _smoothed_where_it_counts(self) -> CpoHyperparameters:
        if self.label_smoothing and self.loss_type != "sigmoid":
            raise ValueError(
                f"has label_smoothing, which loss_type {self.loss_type} does not use; "
                "set it to 0, or loss_type to sigmoid"
            )
        return self


METHOD = Method(
    method_id="cpo",
    title="Contrastive preference optimisation",
    signal="preference",
    source="Xu et al. 2024, arXiv 2401.08417, section 3.2; variants as in trl.experimental",
    hyperparameters=CpoHyperparameters,
    # trl CPOConfig has 1e-6 for all weights; adapters take about ten times that.
    defaults={"training": {"learning_rate": 1e-5}},
    full_defaults={"training": {"learning_rate": 1e-6}},
)
