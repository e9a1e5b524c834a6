"""Kinds of parameters, modules that may be adapted, and what a config says, for usual models."""

from __future__ import annotations

from typing import Any

import pytest

from services.catalog.domain.errors import ModelRefused
from services.catalog.domain.facts import MODULES_MAX, check_index, facts_of
from services.catalog.domain.weights import Tensor

GENERATES = {"architectures": ["LlamaForCausalLM"]}
A_LAYER = {
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.q_norm.weight": (8,),
    "model.layers.0.self_attn.norm_proj.weight": (8, 8),
    "model.layers.0.mlp.up_proj.weight": (16, 8),
    "model.layers.0.mlp.up_proj.bias": (16,),
    "model.layers.0.input_layernorm.weight": (8,),
}
A_MODEL = {
    "model.embed_tokens.weight": (20, 8),
    **A_LAYER,
    "model.norm.weight": (8,),
    "lm_head.weight": (20, 8),
}
A_TOWER = {
    "vision_tower.layers.0.self_attn.out_proj.weight": (4, 4),
    "multi_modal_projector.linear_1.weight": (8, 4),
}


def tensors(shapes: dict[str, tuple[int, ...]], dtype: str = "BF16") -> list[Tensor]:
    return [Tensor(name=name, shape=shape, dtype=dtype) for name, shape in shapes.items()]


def test_parameters_are_counted_by_what_they_do() -> None:
    found = facts_of({}, tensors(A_MODEL | A_TOWER))

    assert found.parameter_counts == {
        "embedding": 160,
        "attention": 64,
        "norm": 8 + 64 + 8 + 8,
        "mlp": 128 + 16,
        "head": 160,
        "vision": 16 + 32,
    }
    assert found.parameter_count == sum(found.parameter_counts.values())
    assert found.has_vision


def test_linear_layers_of_the_language_model_are_adapted_and_others_may_be() -> None:
    found = facts_of({}, tensors(A_MODEL | A_TOWER))

    assert found.default_target_modules == ("q_proj", "up_proj")
    # The projector is in no layer.
    assert found.target_modules == ("embed_tokens", "lm_head", "out_proj", "q_proj", "up_proj")


def test_more_kinds_of_layers_than_a_model_can_have_are_refused() -> None:
    def of(count: int) -> list[Tensor]:
        return tensors({f"model.layers.0.mlp.a{at}.weight": (2, 2) for at in range(count)})

    assert len(facts_of({}, of(MODULES_MAX)).target_modules) == MODULES_MAX
    with pytest.raises(ModelRefused, match="more than 1000 kinds"):
        facts_of({}, of(MODULES_MAX + 1))


@pytest.mark.parametrize(
    ("config", "shapes", "is_tied"),
    [
        ({}, A_MODEL, False),
        ({"tie_word_embeddings": True}, A_MODEL, True),
        ({"tie_word_embeddings": False}, A_LAYER, False),
        ({"tie_word_embeddings": False, **GENERATES}, A_MODEL, False),
        ({"text_config": {"tie_word_embeddings": True}, "tie_word_embeddings": False}, {}, True),
        ({"text_config": {}, "tie_word_embeddings": True}, A_MODEL, True),
    ],
)
def test_what_the_config_says_of_the_head_counts_and_else_the_weights(
    config: dict[str, Any], shapes: dict[str, tuple[int, ...]], is_tied: bool
) -> None:
    assert facts_of(config, tensors(shapes)).is_tied is is_tied


def test_the_type_is_that_of_most_parameters_not_of_most_tensors() -> None:
    few = tensors({f"model.layers.{at}.input_layernorm.weight": (8,) for at in range(9)}, "F32")

    assert facts_of({}, few + tensors({"lm_head.weight": (20, 8)}, "F16")).dtype == "float16"
    assert facts_of({}, tensors({"lm_head.weight": (1, 1)}, "F6_E2M3")).dtype == "f6_e2m3"
    assert facts_of({}, []).dtype == ""


def test_a_word_that_cannot_be_shown_is_taken_for_none() -> None:
    def word(value: object) -> str:
        return facts_of({"architectures": [value]}, []).architecture

    assert word("LlamaForCausalLM") == "LlamaForCausalLM"
    assert [word(value) for value in ("a\x1b[31m", "a" * 201, 7, None)] == [""] * 4
    assert word("a" * 200) == "a" * 200


def test_heads_that_are_not_grouped_have_keys_of_their_own() -> None:
    assert facts_of({"num_attention_heads": 8}, []).key_value_head_count == 8
    grouped = {"num_attention_heads": 8, "num_key_value_heads": 2}
    assert facts_of(grouped, []).key_value_head_count == 2


def test_a_width_of_experts_counts_only_where_there_are_experts() -> None:
    config = {"moe_intermediate_size": 7, "intermediate_size": 9}

    assert facts_of(config, []).intermediate_size == 9
    assert facts_of({**config, "num_local_experts": 4}, []).intermediate_size == 7


@pytest.mark.parametrize(
    ("quantization", "dtype", "factor"),
    [
        ({"load_in_4bit": True, "quant_method": "bitsandbytes"}, "U8", 2),
        ({"load_in_4bit": True}, "BF16", 1),
        ({"load_in_8bit": True}, "U8", 1),
        ({"quant_method": "awq"}, "U8", 2),
        ({"bits": 8}, "U8", 1),
        ({"bits": 3}, "U8", 1),
        ({"bits": "4"}, "U8", 1),
    ],
)
def test_bytes_of_four_bits_hold_two_numbers_each(
    quantization: dict[str, Any], dtype: str, factor: int
) -> None:
    config = {"quantization_config": quantization}
    packed = tensors({"model.layers.0.mlp.up_proj.weight": (32, 1)}, dtype)
    told = tensors({"model.layers.0.mlp.up_proj.weight.absmax": (4,)}, "F32")

    assert facts_of(config, packed + told).parameter_counts == {"mlp": 32 * factor}


@pytest.mark.parametrize(("bits", "factor"), [(8, 4), (4, 8), (2, 16), (1, 32), (9, 1), (0, 1)])
def test_packed_words_hold_as_many_numbers_as_fit(bits: int, factor: int) -> None:
    config = {"quantization_config": {"bits": bits}}
    packed = tensors({"model.layers.0.mlp.up_proj.qweight": (8, 2)}, "I32")

    assert facts_of(config, packed).parameter_counts == {"mlp": 16 * factor}
    assert facts_of(config, packed).default_target_modules == ("up_proj",)


def test_a_tensor_in_two_shards_is_refused_whatever_the_index_says() -> None:
    by_file = {"a.safetensors": ["x"], "b.safetensors": ["x", "y"]}

    with pytest.raises(ModelRefused, match=r"x lies in a\.safetensors and in b\.safetensors"):
        check_index({"x": "b.safetensors", "y": "b.safetensors"}, by_file)


def test_a_tensor_that_lies_in_another_shard_than_the_index_says_is_refused() -> None:
    by_file = {"a.safetensors": ["x"], "b.safetensors": ["y"]}

    with pytest.raises(ModelRefused, match=r"says that x lies in b\.safetensors; it lies in a\."):
        check_index({"x": "b.safetensors", "y": "b.safetensors"}, by_file)
