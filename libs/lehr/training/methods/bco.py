"""Binary classifier optimisation: tell good answers from bad ones by a shifted reward."""

from __future__ import annotations

from typing import Literal

from lehr.training.methods.base import Hyperparameters, Method
from lehr.training.section import Positive


class BcoHyperparameters(Hyperparameters):
    """Names and defaults of BCOConfig as trl 1.13 had it, without its prompt classifier."""

    type: Literal["bco"] = "bco"
    beta: Positive = 0.1
    """How strongly the model is held to the reference (trl BCOConfig)."""


METHOD = Method(
    method_id="bco",
    title="Binary classifier optimisation",
    signal="unpaired",
    source="Jung et al. 2024, arXiv 2404.04656, with reward shift, without the density ratio",
    hyperparameters=BcoHyperparameters,
    # As the other methods that compare with a reference.
    defaults={"training": {"learning_rate": 1e-5}},
    full_defaults={"training": {"learning_rate": 1e-6}},
)
