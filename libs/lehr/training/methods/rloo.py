"""REINFORCE leave-one-out: each answer against the mean reward of the others to its prompt."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lehr.training.methods.base import Method
from lehr.training.methods.online import GroupedHyperparameters
from lehr.training.section import NotNegative


class RlooHyperparameters(GroupedHyperparameters):
    """Names and defaults of trl RLOOConfig."""

    type: Literal["rloo"] = "rloo"
    num_generations: int = Field(default=2, ge=2, le=1024)
    beta: NotNegative = 0.05
    """What the divergence from the base model costs, taken off the reward (equation 3)."""
    normalize_advantages: bool = False
    """Scale the advantages of a step to mean 0 and standard deviation 1."""


METHOD = Method(
    method_id="rloo",
    title="REINFORCE leave-one-out",
    signal="reward_based",
    source="Ahmadian et al. 2024, arXiv 2402.14740, equations 3 and 8; by trl RLOOTrainer",
    hyperparameters=RlooHyperparameters,
    # trl RLOOConfig has 1e-6 for all weights; adapters take about ten times that.
    defaults={"training": {"learning_rate": 1e-5}},
    full_defaults={"training": {"learning_rate": 1e-6}},
)
