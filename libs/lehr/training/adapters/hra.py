"""HRA: weights are mirrored again and again."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from lehr.training.adapters.base import Adapter, Rank, TargetedSpec


class HraSpec(TargetedSpec):
    """Names and defaults of peft HRAConfig."""

    type: Literal["hra"] = "hra"
    r: Rank = 8
    """Reflections of a layer, an even number: each pair begins as no change."""
    apply_GS: bool = False  # noqa: N815 - peft's spelling
    """Keep the mirrors orthogonal to each other (Yuan et al. 2024)."""

    @model_validator(mode="after")
    def _even(self) -> HraSpec:
        if self.r % 2:
            raise ValueError("has an odd r, so the tuned model would not begin as the base model")
        return self


ADAPTER = Adapter(
    adapter_id="hra",
    title="Householder reflections",
    source="Yuan et al. 2024; peft HRAConfig",
    spec=HraSpec,
)
