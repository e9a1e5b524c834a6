"""Dynamic fine-tuning: cross-entropy in which each token weighs as much as it is likely."""

from __future__ import annotations

from typing import Literal

from lehr.training.methods.base import Hyperparameters, Method


class SftDftHyperparameters(Hyperparameters):
    """None beside the loop's."""

    type: Literal["sft_dft"] = "sft_dft"


METHOD = Method(
    method_id="sft_dft",
    title="Dynamic fine-tuning",
    signal="sft",
    source="Wu et al. 2025, arXiv 2508.05629, equation 9",
    hyperparameters=SftDftHyperparameters,
    full_defaults={"training": {"learning_rate": 2e-5}},
    packs=True,
)
