"""Continued pre-training: every token of raw text is trained."""

from __future__ import annotations

from typing import Literal

from lehr.training.methods.base import Hyperparameters, Method


class ContinuedPretrainingHyperparameters(Hyperparameters):
    """None beside the loop's."""

    type: Literal["continued_pretraining"] = "continued_pretraining"


METHOD = Method(
    method_id="continued_pretraining",
    title="Continued pre-training",
    signal="continued_pretraining",
    source="Gururangan et al. 2020, section 3; next-token cross-entropy on all tokens",
    hyperparameters=ContinuedPretrainingHyperparameters,
    full_defaults={"training": {"learning_rate": 2e-5}},
    packs=True,
)
