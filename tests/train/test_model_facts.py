"""What headers and config say of a model is what transformers and peft make of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from services.catalog.domain.facts import ModelFacts, facts_of
from services.catalog.domain.weights import Tensor
from tests.support.small_models import SMALL, SMALL_MODELS

VISION = {
    "text_config": {
        **SMALL,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [2, 3, 3],
        },
    },
    "vision_config": {"depth": 1, "hidden_size": 64, "num_heads": 4, "out_hidden_size": 64},
}
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def build(model_type: str, settings: Mapping[str, Any]) -> Any:
    config = AutoConfig.for_model(model_type, **settings)
    auto = AutoModelForImageTextToText if "vision_config" in settings else AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(config)


def facts(model: Any) -> ModelFacts:
    """Read the facts from what would be saved: tied tensors once, buffers not."""
    tied = set(getattr(model, "_tied_weights_keys", None) or {})
    saved = [
        Tensor(name=name, shape=tuple(value.shape), dtype=DTYPES[value.dtype])
        for name, value in model.named_parameters()
    ]
    is_tied = getattr(model.config, "tie_word_embeddings", False)
    tensors = [tensor for tensor in saved if not (is_tied and tensor.name in tied)]
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    return facts_of(config, tensors)


@pytest.fixture(params=SMALL_MODELS, ids=str)
def model(request: pytest.FixtureRequest) -> Any:
    """A small model of each family, without weights."""
    return build(request.param, SMALL_MODELS[request.param])


def test_parameters_are_those_of_transformers(model: Any) -> None:
    found = facts(model)

    assert found.parameter_count == model.num_parameters()
    assert found.parameter_counts.get("other", 0) < 0.1 * found.parameter_count
    assert (found.layer_count, found.hidden_size, found.vocabulary_size) == (2, 64, 128)
    assert found.attention_head_count == 4


@pytest.mark.filterwarnings(
    "ignore"
)  # peft has advice on families that nothing is trained of here.
def test_default_target_modules_are_those_of_all_linear(model: Any) -> None:
    wrapped = get_peft_model(model, LoraConfig(target_modules="all-linear", r=1))
    theirs = {
        name.partition(".lora_A")[0].rpartition(".")[2]
        for name, _ in wrapped.named_modules()
        if name.endswith("lora_A")
    }

    ours = set(
        facts(
            build(model.config.model_type, SMALL_MODELS[model.config.model_type])
        ).default_target_modules
    )

    assert ours == theirs - {"base_layer"}


def test_experts_are_counted_all_not_only_the_active() -> None:
    found = facts(build("qwen3_moe", SMALL_MODELS["qwen3_moe"]))

    assert found.parameter_counts["experts"] == 2 * 4 * 3 * 32 * 64
    assert (found.expert_count, found.active_expert_count) == (4, 2)
    assert found.intermediate_size == 32


def test_a_vision_tower_is_told_apart() -> None:
    model = build("qwen2_5_vl", VISION)
    tower = sum(value.numel() for name, value in model.named_parameters() if "visual" in name)

    found = facts(model)

    assert found.has_vision
    assert found.parameter_counts["vision"] == tower
    assert "qkv" not in found.default_target_modules
    assert "qkv" in found.target_modules
