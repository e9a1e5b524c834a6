"""Direct preference optimisation of pairs that the model writes and rewards tell apart."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lehr.training.methods.base import Method
from lehr.training.methods.online import RewardedHyperparameters
from lehr.training.section import Positive


class OnlineDpoHyperparameters(RewardedHyperparameters):
    """Names and defaults of trl.experimental OnlineDPOConfig."""

    type: Literal["online_dpo"] = "online_dpo"
    max_completion_length: int = Field(default=64, ge=1, le=1_000_000)
    temperature: Positive = 0.9
    """Of sampling only; log-probabilities are the model's own."""
    loss_type: Literal["sigmoid", "ipo"] = "sigmoid"
    beta: Positive = 0.1
    """How strongly the model is held to the reference (Guo et al. 2024, section 4)."""

    @property
    def completions_per_prompt(self) -> int:
        return 2


METHOD = Method(
    method_id="online_dpo",
    title="Online direct preference optimisation",
    signal="reward_based",
    source="Guo et al. 2024, arXiv 2402.04792, algorithm 1; rewards in place of the annotator",
    hyperparameters=OnlineDpoHyperparameters,
    # trl OnlineDPOConfig has 5e-7 for all weights; adapters take about ten times that.
    defaults={"training": {"learning_rate": 5e-6}},
    full_defaults={"training": {"learning_rate": 5e-7}},
)
