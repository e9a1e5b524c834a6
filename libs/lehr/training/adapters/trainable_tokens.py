"""Trainable tokens: the embeddings of a few tokens are trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from lehr.training.adapters.base import Adapter, TargetedSpec, Targets

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class TrainableTokensSpec(TargetedSpec):
    """Names of peft TrainableTokensConfig."""

    type: Literal["trainable_tokens"] = "trainable_tokens"
    token_indices: Annotated[tuple[TokenId, ...], Field(min_length=1, max_length=10_000)]
    """Tokens whose embeddings are trained; where the head shares them, so does what is learnt."""
    target_modules: Targets = ("embed_tokens",)
    """The embedding layer, by the end of its name."""

    @field_validator("token_indices")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise ValueError("names a token twice")
        return value


ADAPTER = Adapter(
    adapter_id="trainable_tokens",
    title="Embeddings of some tokens",
    source="peft TrainableTokensConfig",
    spec=TrainableTokensSpec,
    trains_head=False,
)
