"""A reward that a reward model gives; only a trainer, which can load one, computes it."""

from __future__ import annotations

from typing import Literal

from lehr.training.rewards.base import Reward, Scored, Unscorable
from lehr.training.section import Reference


class RewardModelReward(Reward):
    """The score of a sequence classifier with one output, such as the method ``reward`` trains.

    It reads the token ids of prompt and completion, so it has the tokenizer of the trained model.
    """

    type: Literal["reward_model"] = "reward_model"
    model: Reference
    """Catalog name of the reward model, with ``@revision`` to pin it."""

    def score(self, scored: Scored) -> float:
        """Raise Unscorable: text alone does not say what a model thinks of it."""
        raise Unscorable("NEEDS_A_MODEL", f"{self.model} is loaded by trainers only")
