"""MiSS: one small matrix a layer, spread over its weight."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from lehr.training.adapters.base import Adapter, Rank, TargetedSpec
from lehr.training.section import Fraction


class MissSpec(TargetedSpec):
    """Names and defaults of peft MissConfig."""

    type: Literal["miss"] = "miss"
    r: Rank = 64
    """Rows of the small matrix."""
    miss_dropout: Fraction = 0.0
    """Dropout before the update."""
    init_weights: Literal[True, "bat", "mini"] = True
    """``bat`` lets the update depend on the weight, ``mini`` shares it over ``mini_r`` outputs."""
    mini_r: int = Field(default=1, ge=1, le=4096)
    """Outputs of a layer that share an update with ``mini``; divides their number."""

    @model_validator(mode="after")
    def _only_mini_shares(self) -> MissSpec:
        if self.mini_r > 1 and self.init_weights != "mini":
            raise ValueError("uses mini_r with init_weights mini only; leave it out, or set mini")
        return self


ADAPTER = Adapter(
    adapter_id="miss",
    title="Matrix shard sharing",
    source="Kang and Yin 2024; peft MissConfig",
    spec=MissSpec,
)
