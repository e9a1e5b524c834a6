"""SHiRA: some entries of each weight are trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lehr.training.adapters.base import Adapter, Rank, TargetedSpec


class ShiraSpec(TargetedSpec):
    """Names and defaults of peft ShiraConfig."""

    type: Literal["shira"] = "shira"
    r: Rank = 32
    """As many entries are trained as LoRA of this rank would have parameters."""
    random_seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Seed of which entries are trained; None takes the seed of the training."""


ADAPTER = Adapter(
    adapter_id="shira",
    title="Sparse high-rank adaptation",
    source="Bhardwaj et al. 2024; peft ShiraConfig",
    spec=ShiraSpec,
)
