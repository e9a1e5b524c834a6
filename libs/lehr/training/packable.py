"""Which models keep the samples of a packed row apart."""

from __future__ import annotations

from lehr.errors import FieldViolation, InvalidArgument

PACKABLE_ATTENTION = frozenset({"eager", "sdpa"})
"""Attention implementations of transformers that heed positions which begin again."""

PACKABLE_MODEL_TYPES = frozenset(
    {
        "cohere",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "granite",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "phi",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "stablelm",
        "starcoder2",
    }
)
"""transformers model types for which tests show equal losses packed and alone, with eager and sdpa
attention. Models with a memory that runs over the whole row (state spaces, linear attention), or
with positions that are not given from outside, would mix the samples."""


def check_packing(model_type: str, attention: str = "sdpa") -> None:
    """Look whether a model keeps packed samples apart.

    Raises:
        InvalidArgument: it does not, or nobody has shown that it does (PACKING_UNSUPPORTED).
    """
    if model_type in PACKABLE_MODEL_TYPES and attention in PACKABLE_ATTENTION:
        return
    what = (
        f"a {model_type} model with {attention} attention does not keep packed samples apart; "
        "set data.packing to false"
    )
    raise InvalidArgument(
        what,
        reason="PACKING_UNSUPPORTED",
        fields=[FieldViolation(field="data.packing", description=what)],
    )
