"""Small random models of the families that Lehr knows, as settings of their configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SMALL: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_NO_GROUPS = {
    name: SMALL[name] for name in SMALL if name not in ("num_key_value_heads", "head_dim")
}

SMALL_MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": SMALL,
    "mistral": SMALL,
    "qwen2": SMALL,
    "qwen3": SMALL,
    "qwen3_moe": {**SMALL, **_EXPERTS, "mlp_only_layers": [], "decoder_sparse_step": 1},
    "mixtral": {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma": SMALL,
    "gemma2": {**SMALL, "query_pre_attn_scalar": 16},
    "gemma3_text": {**SMALL, "query_pre_attn_scalar": 16},
    "phi": {**_NO_GROUPS, "num_key_value_heads": 4},
    "phi3": SMALL,
    "olmo2": SMALL,
    "smollm3": SMALL,
    "granite": SMALL,
    "cohere": SMALL,
    "starcoder2": SMALL,
    "stablelm": SMALL,
    "gpt2": {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "gpt_neox": _NO_GROUPS,
}
