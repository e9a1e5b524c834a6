"""LoKr: the update is a Kronecker product."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lehr.training.adapters.base import Adapter, Rank, TargetedSpec
from lehr.training.section import Fraction


class LokrSpec(TargetedSpec):
    """Names and defaults of peft LoKrConfig."""

    type: Literal["lokr"] = "lokr"
    r: Rank = 8
    """Rank of the larger factor, where that is low-rank itself."""
    alpha: int = Field(default=8, ge=1, le=4096)
    """Scale of the update, divided by ``r``."""
    rank_dropout: Fraction = 0.0
    """Dropout of rows of the update."""
    module_dropout: Fraction = 0.0
    """How often a layer does without its update while training."""
    decompose_both: bool = False
    """Make the smaller factor low-rank too."""
    decompose_factor: int = Field(default=-1, ge=-1, le=65_536)
    """Size of the smaller factor; -1 makes both alike."""
    rank_dropout_scale: bool = False
    """Keep the mean of the update under ``rank_dropout``."""


ADAPTER = Adapter(
    adapter_id="lokr",
    title="Low-rank Kronecker product",
    source="Yeh et al. 2023; peft LoKrConfig",
    spec=LokrSpec,
)
