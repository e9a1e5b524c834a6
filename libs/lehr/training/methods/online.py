"""What methods share that learn from what the model writes itself."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from lehr.training.methods.base import Hyperparameters
from lehr.training.rewards import Rewards
from lehr.training.rewards.modelled import RewardModelReward
from lehr.training.section import NotNegative, Positive

Weight = Annotated[float, Field(allow_inf_nan=False)]


class OnlineHyperparameters(Hyperparameters):
    """How completions are written; names and defaults of trl GRPOConfig."""

    max_completion_length: int = Field(default=512, ge=1, le=1_000_000)
    """Tokens after which a completion is cut off; prompts are cut by ``data.max_length``."""
    temperature: Positive = 1.0
    """Of sampling, and of the log-probabilities that are trained."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    top_k: int = Field(default=0, ge=0, le=10_000_000)
    """The most likely tokens that are sampled from; 0 for all."""
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Least probability of a token, as a share of the most likely one's."""
    repetition_penalty: Positive = 1.0
    num_generations_eval: int = Field(default=1, ge=1, le=1024)
    """Completions of each prompt held out; more make the validation loss less of a chance."""
    generation_batch_size: int | None = Field(default=None, ge=1, le=65_536)
    """Completions that are written at once; None for all of an optimiser step. It decides which
    random numbers a completion gets, so it is part of what a run gives."""

    @property
    def completions_per_prompt(self) -> int:
        """Completions that are written for one prompt and compared with each other."""
        return 1

    @property
    def completion_uses(self) -> int:
        """Optimiser steps that learn from the same completions."""
        return 1


class RewardedHyperparameters(OnlineHyperparameters):
    """How completions are written, and what they are rewarded for."""

    rewards: Rewards
    """What is aimed at: the weighted sum of these."""
    reward_weights: tuple[Weight, ...] | None = None
    """Weight of each of ``rewards``; 1 by default."""

    @model_validator(mode="after")
    def _a_weight_for_each(self) -> RewardedHyperparameters:
        weights = self.reward_weights
        if weights is not None and len(weights) != len(self.rewards):
            raise ValueError("has another number of reward_weights than of rewards; give as many")
        return self

    @property
    def other_models(self) -> tuple[str, ...]:
        """The reward models."""
        return tuple(one.model for one in self.rewards if isinstance(one, RewardModelReward))

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each reward."""
        return self.reward_weights or (1.0,) * len(self.rewards)


class GroupedHyperparameters(RewardedHyperparameters):
    """Groups of completions to one prompt, each a row of a batch; clipped policy gradients."""

    num_generations: int = Field(default=8, ge=2, le=1024)
    """Completions of a group."""
    num_iterations: int = Field(default=1, ge=1, le=64)
    """Optimiser steps that learn from the same completions; the paper's mu."""
    epsilon: Positive = 0.2
    """How far below 1 ratios of probabilities count (DAPO, Yu et al. 2025: 0.2)."""
    epsilon_high: Positive | None = None
    """How far above 1 they count; ``epsilon`` by default (DAPO: 0.28)."""
    beta: NotNegative = 0.0
    """How strongly the model is held to the base model."""

    @property
    def completions_per_prompt(self) -> int:
        return self.num_generations

    @property
    def completion_uses(self) -> int:
        return self.num_iterations

    @property
    def rows_per_prompt(self) -> int:
        """Each completion is a row."""
        return self.num_generations

    def rows_per_epoch(self, rows: int, *, rows_per_step: int) -> int:
        """Rows of whole steps come back; those of an epoch's last, smaller step do not."""
        whole = rows // rows_per_step * rows_per_step
        return whole * self.num_iterations + rows - whole
