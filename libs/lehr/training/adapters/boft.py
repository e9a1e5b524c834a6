"""BOFT: weights are rotated by products of sparse rotations."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from lehr.training.adapters.base import Adapter, TargetedSpec
from lehr.training.section import Fraction


class BoftSpec(TargetedSpec):
    """Names and defaults of peft BOFTConfig."""

    type: Literal["boft"] = "boft"
    boft_block_size: int = Field(default=4, ge=0, le=65_536)
    """Width of a block, which divides that of the layer; 0 where ``boft_block_num`` says it."""
    boft_block_num: int = Field(default=0, ge=0, le=65_536)
    """Blocks of a layer; 0 where ``boft_block_size`` says it."""
    boft_n_butterfly_factor: int = Field(default=1, ge=1, le=16)
    """Rotations one after the other; 1 is OFT."""
    boft_dropout: Fraction = 0.0
    """How often a block is left as it is while training."""

    @model_validator(mode="after")
    def _one_even_size(self) -> BoftSpec:
        size, count = self.boft_block_size, self.boft_block_num
        if (size == 0) == (count == 0):
            raise ValueError("needs boft_block_size or boft_block_num; set one and the other to 0")
        if self.boft_n_butterfly_factor > 1 and size % 2:
            raise ValueError("has an odd boft_block_size, which more than one factor cannot halve")
        return self


ADAPTER = Adapter(
    adapter_id="boft",
    title="Orthogonal butterfly fine-tuning",
    source="Liu et al. 2024; peft BOFTConfig",
    spec=BoftSpec,
)
