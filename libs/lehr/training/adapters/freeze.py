"""Freezing: some layers of the base model are trained, the others are left as they are."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from lehr.training.adapters.base import Adapter, AdapterSpec, Modules


class FreezeSpec(AdapterSpec):
    """Which parts of the base model are trained."""

    type: Literal["freeze"] = "freeze"
    trained_layers: int = Field(default=2, ge=0, le=1000)
    """Layers that are trained, counted from the last (Lee et al. 2019 find a quarter of the layers
    nearly as good as all; 2 is a choice of ours)."""
    trained_modules: Modules = ()
    """Further parts that are trained, by the ends of their names, such as ``lm_head``."""

    @model_validator(mode="after")
    def _trains_something(self) -> FreezeSpec:
        if not self.trained_layers and not self.trained_modules:
            raise ValueError("trains nothing; set trained_layers or trained_modules")
        return self


ADAPTER = Adapter(
    adapter_id="freeze",
    title="The last layers",
    source="Lee et al. 2019, What Would Elsa Do?",
    spec=FreezeSpec,
    trains_base_weights=True,
    mergeable=False,
)
