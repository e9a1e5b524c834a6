"""What preference methods take and refuse, before anything is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.training.methods import METHODS
from lehr.training.methods.dpo import DpoHyperparameters
from lehr.training.proto import SpecInvalid, parse_spec
from lehr.training.registry import problems
from lehr.training.spec import JobSpec

LEAST: dict[str, Any] = {"name": "tune", "model": "smol", "dataset": "qa"}


def a_spec(method: str, **more: Any) -> JobSpec:
    return parse_spec({**LEAST, "method": method, **more})


@pytest.mark.parametrize(
    ("method", "own", "told"),
    [
        ("dpo", {"loss_type": ["robust"]}, "set label_smoothing above 0"),
        ("dpo", {"loss_type": ["exo_pair"], "label_smoothing": 0.5}, "below 0.5"),
        ("dpo", {"label_smoothing": 0.1}, "aot, aot_unpaired, exo_pair or robust"),
        ("dpo", {"loss_type": ["sigmoid", "sigmoid"]}, "give each loss_type once"),
        ("dpo", {"loss_type": ["sigmoid"], "loss_weights": [1, 2]}, "give as many"),
        ("dpo", {"loss_type": ["nca_pair"], "f_divergence_type": "forward_kl"}, "nca_pair"),
        (
            "dpo",
            {"loss_type": ["sigmoid", "apo_down"], "f_divergence_type": "js_divergence"},
            "set it to reverse_kl",
        ),
        ("dpo", {"f_alpha_divergence_coef": 0.3}, "only f_divergence_type alpha_divergence"),
        (
            "dpo",
            {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 1.0},
            "f_alpha_divergence_coef",
        ),
        ("dpo", {"use_weighting": True, "loss_type": ["aot"]}, "weighs pair by pair"),
        ("dpo", {"use_weighting": True, "loss_type": ["sigmoid", "sft"]}, "loss_type sft"),
        ("dpo", {"discopop_tau": 0.1}, "only loss_type discopop"),
        ("dpo", {"ld_alpha": 1.5}, "ld_alpha"),
        ("dpo", {"ld_alpha": 0.5, "loss_type": ["sft"]}, "loss_type sft does not use"),
        ("dpo", {"sync_ref_model": True}, "sync_ref_model"),
        ("cpo", {"loss_type": "hinge", "label_smoothing": 0.1}, "loss_type hinge does not use"),
        ("cpo", {"loss_type": "simpo"}, "loss_type"),
        ("kto", {"loss_type": "bco"}, "loss_type"),
        ("kto", {"desirable_weight": 0}, "desirable_weight"),
        ("orpo", {"beta": 0}, "beta"),
        ("simpo", {"simpo_gamma": -1}, "simpo_gamma"),
        ("bco", {"delta": 1}, "delta"),
    ],
)
def test_options_that_say_nothing_or_too_much_are_refused(
    method: str, own: dict[str, Any], told: str
) -> None:
    with pytest.raises(SpecInvalid, match="hyperparameters") as refused:
        a_spec(method, hyperparameters=own)

    assert told in refused.value.message


@pytest.mark.parametrize(
    "own",
    [
        {"loss_type": ["aot"], "label_smoothing": 0.1},
        {"loss_type": ["sigmoid", "sft"], "f_divergence_type": "forward_kl"},
        {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.3},
        {"loss_type": ["sigmoid", "sft"], "ld_alpha": 0},
        {"use_weighting": True, "loss_type": ["apo_zero", "hinge"]},
        {"loss_type": ["discopop"], "discopop_tau": 0.2},
    ],
)
def test_options_that_go_together_are_taken_and_told_again(own: dict[str, Any]) -> None:
    spec = a_spec("dpo", hyperparameters=own)

    assert JobSpec.model_validate(spec.model_dump()) == spec
    told = spec.hyperparameters_as(DpoHyperparameters).model_dump()
    assert {name: told[name] for name in own} == {
        name: tuple(one) if isinstance(one, list) else one for name, one in own.items()
    }


@pytest.mark.parametrize(
    ("own", "training", "is_refused"),
    [
        ({}, {"per_device_train_batch_size": 1}, True),
        ({}, {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}, False),
        ({"loss_type": "apo_zero_unpaired"}, {"per_device_train_batch_size": 1}, False),
    ],
)
def test_a_step_of_one_row_is_refused_where_rows_are_compared(
    own: dict[str, Any], training: dict[str, Any], is_refused: bool
) -> None:
    found = problems(a_spec("kto", hyperparameters=own, training=training))

    assert [one.field for one in found] == (
        ["training.per_device_train_batch_size"] if is_refused else []
    )


@pytest.mark.parametrize(
    ("method", "adapter", "learning_rate"),
    [("orpo", "lora", 8e-5), ("orpo", "full", 8e-6), ("kto", "lora", 1e-5), ("cpo", "full", 1e-6)],
)
def test_learning_rates_are_those_of_the_method(
    method: str, adapter: str, learning_rate: float
) -> None:
    spec = a_spec(method, adapter={"type": adapter})

    assert spec.training.learning_rate == learning_rate


@pytest.mark.parametrize("method", ["dpo", "kto", "orpo", "simpo", "cpo", "bco"])
def test_pairs_are_taken_and_single_answers_by_those_that_look_at_them_alone(method: str) -> None:
    is_single = method in {"kto", "bco"}
    spec = a_spec(method)

    assert not problems(spec, row_kind="preference")
    assert bool(problems(spec, row_kind="unpaired_preference")) is not is_single
    own = spec.hyperparameters
    assert METHODS[method].batch_rows("preference", own) == (2 if is_single else 1)
    assert METHODS[method].batch_rows("unpaired_preference", own) == 1
