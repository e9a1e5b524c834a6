"""OFT: weights are rotated, block by block."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lehr.training.adapters.base import Adapter, TargetedSpec
from lehr.training.section import Fraction, Positive


class OftSpec(TargetedSpec):
    """Names and defaults of peft OFTConfig."""

    type: Literal["oft"] = "oft"
    r: int = Field(default=0, ge=0, le=65_536)
    """Blocks of a layer; 0 where ``oft_block_size`` says it."""
    oft_block_size: int = Field(default=32, ge=0, le=65_536)
    """Width of a block, which divides that of the layer; 0 where ``r`` says it."""
    module_dropout: Fraction = 0.0
    """How often a block is left as it is while training."""
    coft: bool = False
    """Keep rotations close to none (Qiu et al. 2023)."""
    eps: Positive = 6e-5
    """How close with ``coft``."""
    block_share: bool = False
    """One rotation for all blocks of a layer."""
    use_cayley_neumann: bool = True
    """Invert by a series (Qiu et al. 2025), which is faster and not quite exact."""
    num_cayley_neumann_terms: Annotated[int, Field(ge=1, le=64)] = 5
    """Terms of that series."""

    @model_validator(mode="after")
    def _one_size(self) -> OftSpec:
        if (self.r == 0) == (self.oft_block_size == 0):
            raise ValueError("needs r or oft_block_size; set one and the other to 0")
        return self


ADAPTER = Adapter(
    adapter_id="oft",
    title="Orthogonal fine-tuning",
    source="Qiu et al. 2023; peft OFTConfig",
    spec=OftSpec,
)
