"""Prefix tuning: learnt keys and values before each row, in every layer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from lehr.training.adapters.base import Adapter, AdapterSpec
from lehr.training.adapters.prompt_tuning import VirtualTokens


class PrefixTuningSpec(AdapterSpec):
    """Names of peft PrefixTuningConfig."""

    type: Literal["prefix_tuning"] = "prefix_tuning"
    num_virtual_tokens: VirtualTokens = 20
    """Positions that are learnt (Li and Liang 2021 use 10 to 200 by task)."""
    prefix_projection: bool = False
    """Learn them through a small network, which is left out of what is saved."""
    encoder_hidden_size: int | None = Field(default=None, ge=1, le=65_536)
    """Width of that network; None takes that of the model."""

    @model_validator(mode="after")
    def _width_of_what(self) -> PrefixTuningSpec:
        if self.encoder_hidden_size is not None and not self.prefix_projection:
            raise ValueError("has encoder_hidden_size without prefix_projection; set both or none")
        return self


ADAPTER = Adapter(
    adapter_id="prefix_tuning",
    title="Prefix tuning",
    source="Li and Liang 2021; peft PrefixTuningConfig",
    spec=PrefixTuningSpec,
    mergeable=False,
    learns_prompt=True,
    trains_head=False,
)
