"""Supervised fine-tuning with noise on the embeddings of what is read."""

from __future__ import annotations

from typing import Literal

from lehr.training.methods.base import Hyperparameters, Method
from lehr.training.section import Positive


class SftNeftuneHyperparameters(Hyperparameters):
    """How strong the noise is."""

    type: Literal["sft_neftune"] = "sft_neftune"
    neftune_noise_alpha: Positive = 5.0
    """Noise is uniform in +-alpha / sqrt(tokens * width) (the paper's smallest alpha)."""


METHOD = Method(
    method_id="sft_neftune",
    title="Supervised fine-tuning with noisy embeddings",
    signal="sft",
    source="Jain et al. 2023, arXiv 2310.05914, algorithm 1",
    hyperparameters=SftNeftuneHyperparameters,
    full_defaults={"training": {"learning_rate": 2e-5}},
    packs=True,
)
