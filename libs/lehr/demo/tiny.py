"""A tiny random Llama, for tests that need a model but not its wits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from lehr.demo.folders import make_once
from lehr.demo.weights import Floats, save_bfloat16

NAME = "tiny-llama"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
#: What the tokenizer's merges are learnt from.
_PROSE = (
    "Return the number of items in the list. Raise an error if the file is not open. "
    "The object is a string, and the value of each key is what the caller gave it. "
    "user assistant system: What does this function do? It reads the next line and returns it. "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """Sizes of a Llama model."""

    vocab_size: int
    hidden_size: int = 64
    intermediate_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = True


def tiny_llama(cache_dir: Path) -> Path:
    """Return the folder of a model of some 100,000 random weights, the same on every machine."""
    return make_once(cache_dir / NAME, _fill)


def write_llama(
    folder: Path, shape: LlamaShape, *, special_ids: dict[str, int], seed: int = 0
) -> None:
    """Write ``config.json`` and random weights; ``special_ids`` are such as ``eos_token_id``."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "max_position_embeddings": shape.max_position_embeddings,
        "tie_word_embeddings": shape.tie_word_embeddings,
        **special_ids,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_bfloat16(_random_weights(shape, seed), folder / "model.safetensors")


def _fill(folder: Path) -> None:
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": _CONTROL[0],
        "bos_token": _CONTROL[1],
        "eos_token": _CONTROL[2],
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_llama(folder, LlamaShape(vocab_size=tokenizer.get_vocab_size()), special_ids=ids)


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[AddedToken(token, normalized=False) for token in _CONTROL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_PROSE], trainer)
    return tokenizer


def _random_weights(shape: LlamaShape, seed: int) -> dict[str, Floats]:
    random = np.random.default_rng(seed)
    hidden, inner = shape.hidden_size, shape.intermediate_size
    narrow = hidden // shape.num_attention_heads * shape.num_key_value_heads

    def matrix(rows: int, columns: int) -> Floats:
        return random.normal(0.0, 0.02, (rows, columns)).astype(np.float32)

    ones = np.ones(hidden, dtype=np.float32)
    weights = {
        "model.embed_tokens.weight": matrix(shape.vocab_size, hidden),
        "model.norm.weight": ones,
    }
    if not shape.tie_word_embeddings:
        weights["lm_head.weight"] = matrix(shape.vocab_size, hidden)
    for layer in range(shape.num_hidden_layers):
        parts = {
            "input_layernorm": ones,
            "self_attn.q_proj": matrix(hidden, hidden),
            "self_attn.k_proj": matrix(narrow, hidden),
            "self_attn.v_proj": matrix(narrow, hidden),
            "self_attn.o_proj": matrix(hidden, hidden),
            "post_attention_layernorm": ones,
            "mlp.gate_proj": matrix(inner, hidden),
            "mlp.up_proj": matrix(inner, hidden),
            "mlp.down_proj": matrix(hidden, inner),
        }
        weights |= {f"model.layers.{layer}.{name}.weight": part for name, part in parts.items()}
    return weights
