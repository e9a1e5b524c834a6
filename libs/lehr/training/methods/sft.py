"""Supervised fine-tuning: token cross-entropy on the answers."""

from __future__ import annotations

from typing import Literal

from lehr.training.methods.base import Hyperparameters, Method


class SftHyperparameters(Hyperparameters):
    """None beside the loop's."""

    type: Literal["sft"] = "sft"


METHOD = Method(
    method_id="sft",
    title="Supervised fine-tuning",
    signal="sft",
    source="Ouyang et al. 2022, section 3.1; token cross-entropy on the answers only",
    hyperparameters=SftHyperparameters,
    # trl SFTConfig.
    full_defaults={"training": {"learning_rate": 2e-5}},
    packs=True,
)
