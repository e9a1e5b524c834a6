"""RandLoRA: sums of random low-rank matrices, scaled by what is learnt."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from lehr.training.adapters.base import Adapter, Rank, TargetedSpec
from lehr.training.section import Fraction


class RandloraSpec(TargetedSpec):
    """Names and defaults of peft RandLoraConfig; the random matrices are always saved."""

    type: Literal["randlora"] = "randlora"
    r: Rank = 32
    """Rank of each random matrix; the smaller, the more is trained."""
    randlora_alpha: int = Field(default=640, ge=1, le=65_536)
    """Scale of the update, divided by ``r``."""
    randlora_dropout: Fraction = 0.0
    """Dropout before the update."""
    projection_prng_key: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seed of the random matrices."""
    sparse: bool = False
    """Random matrices of -1, 0 and 1 (Albert et al. 2025)."""
    very_sparse: bool = False
    """The same with still more zeros."""

    @model_validator(mode="after")
    def _one_kind(self) -> RandloraSpec:
        if self.sparse and self.very_sparse:
            raise ValueError("is sparse and very_sparse; set one")
        return self


ADAPTER = Adapter(
    adapter_id="randlora",
    title="Full-rank adaptation by random bases",
    source="Albert et al. 2025; peft RandLoraConfig",
    spec=RandloraSpec,
)
