"""LoHa: the update is the product, entry by entry, of two low-rank matrices."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lehr.training.adapters.base import Adapter, Rank, TargetedSpec
from lehr.training.section import Fraction


class LohaSpec(TargetedSpec):
    """Names and defaults of peft LoHaConfig."""

    type: Literal["loha"] = "loha"
    r: Rank = 8
    """Rank of both matrices; that of the update is up to its square."""
    alpha: int = Field(default=8, ge=1, le=4096)
    """Scale of the update, divided by ``r``."""
    rank_dropout: Fraction = 0.0
    """Dropout of rows of the update."""
    module_dropout: Fraction = 0.0
    """How often a layer does without its update while training."""


ADAPTER = Adapter(
    adapter_id="loha",
    title="Low-rank Hadamard product",
    source="Hyeon-Woo et al. 2022; peft LoHaConfig",
    spec=LohaSpec,
)
