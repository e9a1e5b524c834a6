"""Facts of a model from its config and its headers alone."""

from __future__ import annotations

from typing import Any

import pytest

from services.catalog.domain.errors import ModelRefused
from services.catalog.domain.facts import check_index, facts_of
from services.catalog.domain.weights import Tensor

LLAMA = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}


def tensors(shapes: dict[str, tuple[int, ...]], dtype: str = "BF16") -> list[Tensor]:
    return [Tensor(name=name, shape=shape, dtype=dtype) for name, shape in shapes.items()]


def a_mixture() -> list[Tensor]:
    """The experts of 48 layers with 128 experts each, hidden 2048, expert width 768."""
    return tensors(
        {
            f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight": shape
            for layer in range(48)
            for expert in range(128)
            for name, shape in (("gate", (768, 2048)), ("up", (768, 2048)), ("down", (2048, 768)))
        }
    )


def test_all_experts_of_a_mixture_are_counted() -> None:
    config = {
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
    }

    found = facts_of(config, a_mixture())

    assert found.parameter_counts["experts"] == 28_991_029_248
    assert (found.expert_count, found.active_expert_count) == (128, 8)
    assert found.intermediate_size == 768
    assert found.dtype == "bfloat16"


def test_packed_weights_count_as_the_numbers_they_hold() -> None:
    config = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    packed = [
        Tensor(name="model.layers.0.mlp.up_proj.qweight", shape=(8, 32), dtype="I32"),
        Tensor(name="model.layers.0.mlp.up_proj.scales", shape=(1, 32), dtype="F16"),
        Tensor(name="model.layers.0.mlp.up_proj.qzeros", shape=(1, 4), dtype="I32"),
    ]

    found = facts_of(config, packed)

    assert found.parameter_counts == {"mlp": 8 * 32 * 8}
    assert found.quantization == "gptq"


@pytest.mark.parametrize("config", [{}, {"tie_word_embeddings": True}])
def test_a_model_without_a_head_of_its_own_is_tied(config: dict[str, Any]) -> None:
    assert facts_of(config, tensors({"model.embed_tokens.weight": (9, 4)})).is_tied


def test_a_head_that_the_config_asks_for_and_no_file_holds_is_refused() -> None:
    with pytest.raises(ModelRefused, match="no file holds the head"):
        facts_of(LLAMA, tensors({"model.embed_tokens.weight": (9, 4)}))


def test_sizes_of_a_vision_model_are_those_of_its_language_model() -> None:
    config = {
        "text_config": {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 7},
        "vision_config": {"hidden_size": 1280},
        "hidden_size": 9,
    }

    found = facts_of(config, [])

    assert (found.hidden_size, found.layer_count, found.vocabulary_size) == (64, 2, 7)
    assert found.has_vision


@pytest.mark.parametrize("value", ["64", 64.0, True, -1, None, 2**40])
def test_a_size_that_is_no_count_is_taken_for_unknown(value: object) -> None:
    assert facts_of({"hidden_size": value}, []).hidden_size == 0


SHARDS = {"a.safetensors": ["x", "y"], "b.safetensors": ["z"]}
INDEX = {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}


def test_an_index_that_agrees_with_its_shards_is_taken() -> None:
    check_index(INDEX, SHARDS)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"w": "c.safetensors"}, "names c.safetensors, which is not among the files"),
        ({"w": "a.safetensors"}, "says that w lies in a.safetensors; it lies in no file"),
        ({"z": "a.safetensors"}, "says that z lies in a.safetensors; it lies in b.safetensors"),
    ],
)
def test_an_index_that_differs_from_its_shards_is_refused(
    change: dict[str, str], told: str
) -> None:
    with pytest.raises(ModelRefused, match=told):
        check_index({**INDEX, **change}, SHARDS)


def test_a_tensor_that_the_index_does_not_name_is_refused() -> None:
    with pytest.raises(ModelRefused, match=r"does not name z, which b.safetensors holds"):
        check_index({"x": "a.safetensors", "y": "a.safetensors"}, SHARDS)
