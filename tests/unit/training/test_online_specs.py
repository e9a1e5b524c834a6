"""Specs of methods that write their own completions: groups, uses, and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.training.methods import METHODS
from lehr.training.proto import SpecInvalid, parse_spec, spec_from_proto, spec_to_proto
from lehr.training.registry import problems
from lehr.training.spec import JobSpec
from services.scheduler.domain.plan import DataFacts, total_steps

_LENGTH = {"type": "length", "max": 9}


def a_spec(own: dict[str, Any], *, method: str = "grpo", **training: Any) -> JobSpec:
    told = {"rewards": [_LENGTH], **own}
    return parse_spec(
        {
            "name": "n",
            "model": "m",
            "dataset": "d",
            "method": method,
            "hyperparameters": told,
            "training": training,
        }
    )


def refusal(own: dict[str, Any], *, method: str = "grpo") -> str:
    with pytest.raises(SpecInvalid) as error:
        a_spec(own, method=method)
    return error.value.message


def facts(rows: int) -> DataFacts:
    return DataFacts(
        row_count=rows,
        train_count=rows,
        validation_count=0,
        longest_tokens=9,
        max_length=9,
        truncated_count=0,
        dropped_count=0,
        untrainable_count=0,
        token_count=9 * rows,
        trained_token_count=0,
    )


def test_a_group_fills_a_step_by_default_and_a_part_of_one_is_refused() -> None:
    assert problems(a_spec({})) == []

    [found] = problems(a_spec({}, per_device_train_batch_size=6, gradient_accumulation_steps=2))

    assert found.field == "training.per_device_train_batch_size"
    assert "12 rows, which are no whole groups of 8 answers" in found.description


@pytest.mark.parametrize(
    ("rows", "uses", "steps"),
    # Two prompts a step; the last one of 5 prompts is a smaller step, which is used once.
    [(4, 1, 2), (4, 3, 6), (5, 1, 3), (5, 3, 7)],
)
def test_a_plan_counts_the_steps_that_answers_and_their_uses_make(
    rows: int, uses: int, steps: int
) -> None:
    spec = a_spec({"num_iterations": uses}, gradient_accumulation_steps=2)
    assert total_steps(spec, facts(rows), row_kind="prompt_answer") == steps


def test_rewards_come_back_from_the_wire_as_they_were() -> None:
    rewards = [
        {"type": "json_schema", "json_schema": {"properties": {"a": {"const": None}}}},
        {
            "type": "multi",
            "graders": {"short": _LENGTH},
            "calculate_output": "2 * short",
        },
        {"type": "reward_model", "model": "judge@0123456789ab"},
    ]
    spec = a_spec({"rewards": rewards, "reward_weights": [1, -0.5, 0]})

    assert spec_from_proto(spec_to_proto(spec)) == spec


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"rewards": []}, "rewards"),
        ({"reward_weights": [1.0, 1.0]}, "another number of reward_weights"),
        ({"rewards": [{"type": "python", "source": "1"}]}, "an administrator must allow"),
        ({"importance_sampling_level": "sequence"}, "set loss_type to grpo"),
        ({"loss_type": "luspo"}, "set importance_sampling_level to sequence"),
        ({"sapo_temperature_pos": 2.0}, "only loss_type sapo uses"),
        ({"loss_type": "vespo", "epsilon_high": 0.3}, "clips no ratio"),
        ({"delta": 1.1}, "above 1 + epsilon"),
        ({"num_generations": 1}, "num_generations"),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_does(
    own: dict[str, Any], words: str
) -> None:
    assert words in refusal(own)


def test_online_methods_take_prompts_and_a_teacher_has_to_be_named() -> None:
    for method in ("grpo", "rloo", "online_dpo", "distill"):
        assert METHODS[method].row_kinds == ("prompt_answer",)
    with pytest.raises(SpecInvalid, match="teacher_model"):
        parse_spec({"name": "n", "model": "m", "dataset": "d", "method": "distill"})
