"""Adapters as people write them: every one of them, what is refused, and what goes together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lehr.training.adapters import ADAPTERS
from lehr.training.combinations import combination_problems
from lehr.training.methods import METHODS
from lehr.training.proto import SpecInvalid, parse_spec, spec_from_proto, spec_to_proto
from lehr.training.registry import problems
from lehr.training.spec import JobSpec

#: Values that are no defaults, of every field; some adapters have fields that exclude others.
WRITTEN: tuple[dict[str, Any], ...] = (
    {
        "type": "lora",
        "r": 4,
        "lora_alpha": 5,
        "lora_dropout": 0.25,
        "target_modules": ["q_proj"],
        "use_rslora": True,
        "use_dora": True,
        "init_lora_weights": "gaussian",
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {"layers.0.q_proj": 3},
        "modules_to_save": ["embed_tokens"],
        "loraplus_lr_ratio": 16.0,
    },
    {
        "type": "qlora",
        "r": 4,
        "lora_alpha": 5,
        "lora_dropout": 0.25,
        "target_modules": ["q_proj"],
        "use_rslora": True,
        "use_dora": True,
        "init_lora_weights": "gaussian",
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {"v_proj": 3},
        "modules_to_save": ["embed_tokens"],
        "loraplus_lr_ratio": 16.0,
        "load_in_8bit": True,
        "bnb_4bit_quant_type": "fp4",
        "bnb_4bit_use_double_quant": False,
    },
    {"type": "full"},
    {"type": "freeze", "trained_layers": 0, "trained_modules": ["lm_head"]},
    {
        "type": "adalora",
        "target_modules": ["q_proj"],
        "init_r": 6,
        "target_r": 3,
        "lora_alpha": 4,
        "lora_dropout": 0.25,
        "tinit": 1,
        "tfinal": 2,
        "deltaT": 3,
        "beta1": 0.5,
        "beta2": 0.25,
        "orth_reg_weight": 0.0,
    },
    {
        "type": "loha",
        "target_modules": ["q_proj"],
        "r": 2,
        "alpha": 3,
        "rank_dropout": 0.25,
        "module_dropout": 0.5,
    },
    {
        "type": "lokr",
        "target_modules": ["q_proj"],
        "r": 2,
        "alpha": 3,
        "rank_dropout": 0.25,
        "module_dropout": 0.5,
        "decompose_both": True,
        "decompose_factor": 4,
        "rank_dropout_scale": True,
    },
    {
        "type": "oft",
        "target_modules": ["q_proj"],
        "r": 4,
        "oft_block_size": 0,
        "module_dropout": 0.5,
        "coft": True,
        "eps": 0.5,
        "block_share": True,
        "use_cayley_neumann": False,
        "num_cayley_neumann_terms": 7,
    },
    {
        "type": "boft",
        "target_modules": ["q_proj"],
        "boft_block_size": 0,
        "boft_block_num": 4,
        "boft_n_butterfly_factor": 2,
        "boft_dropout": 0.25,
    },
    {"type": "hra", "target_modules": ["q_proj"], "r": 2, "apply_GS": True},
    {
        "type": "vera",
        "target_modules": ["q_proj"],
        "r": 4,
        "projection_prng_key": 3,
        "vera_dropout": 0.25,
        "d_initial": 0.5,
    },
    {
        "type": "randlora",
        "target_modules": ["q_proj"],
        "r": 4,
        "randlora_alpha": 6,
        "randlora_dropout": 0.25,
        "projection_prng_key": 3,
        "sparse": True,
        "very_sparse": False,
    },
    {
        "type": "fourierft",
        "target_modules": ["q_proj"],
        "n_frequency": 7,
        "scaling": 2.0,
        "random_loc_seed": 3,
    },
    {
        "type": "miss",
        "target_modules": ["q_proj"],
        "r": 4,
        "miss_dropout": 0.25,
        "init_weights": "mini",
        "mini_r": 2,
    },
    {"type": "shira", "target_modules": ["q_proj"], "r": 4, "random_seed": 5},
    {"type": "ia3", "target_modules": "all-linear", "feedforward_modules": []},
    {"type": "ln_tuning", "target_modules": ["norm"]},
    {"type": "trainable_tokens", "token_indices": [7, 3], "target_modules": ["wte"]},
    {
        "type": "prompt_tuning",
        "num_virtual_tokens": 3,
        "prompt_tuning_init": "TEXT",
        "prompt_tuning_init_text": "Answer.",
    },
    {
        "type": "prefix_tuning",
        "num_virtual_tokens": 3,
        "prefix_projection": True,
        "encoder_hidden_size": 8,
    },
    {
        "type": "p_tuning",
        "num_virtual_tokens": 3,
        "encoder_reparameterization_type": "LSTM",
        "encoder_hidden_size": 8,
        "encoder_num_layers": 3,
        "encoder_dropout": 0.5,
    },
)
LEAST: dict[str, dict[str, Any]] = {"trainable_tokens": {"token_indices": [1]}}


def a_spec(adapter: dict[str, Any], **more: Any) -> JobSpec:
    return parse_spec({"name": "n", "model": "m", "dataset": "d", "adapter": adapter, **more})


def test_every_adapter_is_written_with_all_its_fields() -> None:
    assert {one["type"] for one in WRITTEN} == set(ADAPTERS)
    for one in WRITTEN:
        assert set(one) == set(ADAPTERS[one["type"]].spec.model_fields)


@pytest.mark.parametrize("adapter", WRITTEN, ids=lambda one: one["type"])
def test_an_adapter_over_grpc_is_what_it_was(adapter: dict[str, Any]) -> None:
    spec = a_spec(adapter)

    assert spec_from_proto(spec_to_proto(spec)) == spec
    assert spec.adapter.model_dump(mode="json") == adapter


@pytest.mark.parametrize("adapter_id", ADAPTERS)
def test_an_adapter_with_its_defaults_is_the_same_over_grpc_and_can_run(adapter_id: str) -> None:
    spec = a_spec({"type": adapter_id, **LEAST.get(adapter_id, {})})

    assert spec_from_proto(spec_to_proto(spec)) == spec
    assert not problems(spec)
    assert ADAPTERS[adapter_id].title
    assert ADAPTERS[adapter_id].source


@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        ({"type": "lora", "init_lora_weights": "orthogonal", "r": 3}, "use an even one"),
        ({"type": "lora", "init_lora_weights": "eva", "rank_pattern": {"q": 2}}, "leave rank_"),
        ({"type": "lora", "init_lora_weights": "pissa", "use_dora": True}, "leave one of them"),
        ({"type": "lora", "init_lora_weights": False}, "True, 'gaussian'"),
        ({"type": "lora", "use_dora": 1.5}, "boolean"),
        ({"type": "lora", "rank_pattern": {"q_proj": 0}}, "not 1 to 1024"),
        ({"type": "lora", "loraplus_lr_ratio": 0.5}, "greater than or equal to 1"),
        ({"type": "qlora", "init_lora_weights": "pissa"}, "True or 'gaussian'"),
        ({"type": "freeze", "trained_layers": 0}, "set trained_layers or"),
        ({"type": "adalora", "init_r": 8}, "set init_r above target_r"),
        ({"type": "oft", "r": 4}, "set one and the other to 0"),
        ({"type": "boft", "boft_block_num": 4}, "set one and the other to 0"),
        ({"type": "boft", "boft_block_size": 3, "boft_n_butterfly_factor": 2}, "cannot halve"),
        ({"type": "hra", "r": 3}, "odd r"),
        ({"type": "randlora", "sparse": True, "very_sparse": True}, "set one"),
        ({"type": "miss", "mini_r": 2}, "set mini"),
        ({"type": "ia3", "target_modules": ["k_proj"]}, "down_proj; name it in target_modules"),
        ({"type": "trainable_tokens"}, "is missing"),
        ({"type": "trainable_tokens", "token_indices": [1, 1]}, "twice"),
        ({"type": "prompt_tuning", "prompt_tuning_init": "TEXT"}, "prompt_tuning_init_text"),
        ({"type": "prefix_tuning", "encoder_hidden_size": 4}, "without prefix_projection"),
        ({"type": "full", "r": 8}, "not a field"),
        ({"type": "bitfit"}, "use lora, qlora"),
    ],
)
def test_fields_that_do_not_go_together_are_refused_with_what_to_do(
    adapter: dict[str, Any], told: str
) -> None:
    with pytest.raises(SpecInvalid) as caught:
        a_spec(adapter)

    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("adapter", "more", "field", "told"),
    [
        ({"type": "p_tuning"}, {"data": {"packing": True}}, "data.packing", "use lora"),
        (
            {"type": "prefix_tuning"},
            {"training": {"gradient_checkpointing": True}},
            "training.gradient_checkpointing",
            "use prompt_tuning",
        ),
        (
            {"type": "lora", "init_lora_weights": "loftq"},
            {},
            "adapter.init_lora_weights",
            "needs a CUDA GPU",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason_and_the_nearest(
    adapter: dict[str, Any], more: dict[str, Any], field: str, told: str
) -> None:
    [problem] = problems(a_spec(adapter, **more))

    assert problem.field == field
    assert told in problem.description


@pytest.mark.parametrize("adapter_id", ["prompt_tuning", "p_tuning", "trainable_tokens"])
def test_a_new_head_needs_an_adapter_that_saves_it(adapter_id: str) -> None:
    scores = replace(METHODS["sft"], head="sequence_classification")
    spec = a_spec({"type": adapter_id, **LEAST.get(adapter_id, {})})

    [problem] = combination_problems(spec, scores)

    assert problem.field == "adapter.type"
    assert "use lora" in problem.description


def test_what_trains_weights_of_the_base_learns_as_slowly_as_full_training() -> None:
    def learning_rate(adapter_id: str) -> float:
        return a_spec({"type": adapter_id}).training.learning_rate

    assert learning_rate("freeze") == learning_rate("full") < learning_rate("lora")
