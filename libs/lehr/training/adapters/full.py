"""Full fine-tuning: no adapter, every weight is trained."""

from __future__ import annotations

from typing import Literal

from lehr.training.adapters.base import Adapter, AdapterSpec


class FullSpec(AdapterSpec):
    """Nothing to choose."""

    type: Literal["full"] = "full"


ADAPTER = Adapter(
    adapter_id="full",
    title="All weights",
    source="every parameter of the base model is updated",
    spec=FullSpec,
    trains_base_weights=True,
    mergeable=False,
)
