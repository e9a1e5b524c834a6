"""Prompt tuning: learnt embeddings before each row."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lehr.training.adapters.base import Adapter, AdapterSpec

VirtualTokens = Annotated[int, Field(ge=1, le=4096)]


class PromptTuningSpec(AdapterSpec):
    """Names of peft PromptTuningConfig."""

    type: Literal["prompt_tuning"] = "prompt_tuning"
    num_virtual_tokens: VirtualTokens = 20
    """Positions that are learnt (Lester et al. 2021 find little gain above 20)."""
    prompt_tuning_init: Literal["RANDOM", "SAMPLE_VOCAB", "TEXT"] = "RANDOM"
    """What they begin with: noise (peft default), random tokens, or a text's tokens."""
    prompt_tuning_init_text: str | None = Field(default=None, min_length=1, max_length=10_000)
    """That text."""

    @model_validator(mode="after")
    def _text_where_it_is_used(self) -> PromptTuningSpec:
        is_text = self.prompt_tuning_init == "TEXT"
        if is_text != (self.prompt_tuning_init_text is not None):
            raise ValueError("needs prompt_tuning_init_text with prompt_tuning_init TEXT only")
        return self


ADAPTER = Adapter(
    adapter_id="prompt_tuning",
    title="Prompt tuning",
    source="Lester et al. 2021; peft PromptTuningConfig",
    spec=PromptTuningSpec,
    mergeable=False,
    learns_prompt=True,
    trains_head=False,
)
