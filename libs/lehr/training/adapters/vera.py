"""VeRA: random matrices that all layers share, and a vector for each layer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lehr.training.adapters.base import Adapter, Rank, TargetedSpec
from lehr.training.section import Fraction, Positive


class VeraSpec(TargetedSpec):
    """Names and defaults of peft VeraConfig; the random matrices are always saved."""

    type: Literal["vera"] = "vera"
    r: Rank = 256
    """Rank of the shared matrices."""
    projection_prng_key: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seed of the shared matrices."""
    vera_dropout: Fraction = 0.0
    """Dropout before the update."""
    d_initial: Positive = 0.1
    """What the vectors of the ranks begin with (Kopiczko et al. 2024; peft default)."""


ADAPTER = Adapter(
    adapter_id="vera",
    title="Vector-based random matrix adaptation",
    source="Kopiczko et al. 2024, equation 2; peft VeraConfig",
    spec=VeraSpec,
)
