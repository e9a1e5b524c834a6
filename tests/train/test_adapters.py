"""Every adapter trains, is loaded by plain peft on the plain base, goes on exactly, and merges."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.training.adapters import ADAPTERS
from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from tests.support.trainers import Told
from tests.train.adapter_cases import (
    CASES,
    AdapterCase,
    assert_merges,
    evaluation_loss,
    losses,
    plan_of,
    tuned_of,
)

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

Train = Callable[..., Told]
BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture
def plan(tmp_path: Path, tiny: Path) -> Callable[..., TrainingPlan]:
    def build(case: AdapterCase, name: str, **more: Any) -> TrainingPlan:
        return plan_of(tmp_path, tiny, case, name, **more)

    return build


def test_every_adapter_has_a_case() -> None:
    assert {case.adapter for case in CASES} == set(ADAPTERS)


@BY_NAME
def test_an_adapter_trains_and_plain_peft_gives_what_was_evaluated(
    case: AdapterCase,
    plan: Callable[..., TrainingPlan],
    train: Train,
    tiny: Path,
    tmp_path: Path,
) -> None:
    made = plan(case, "run")
    told = train(made)
    folder = told.checkpoint_at(6)

    base, *_, last = told.evaluations
    assert told.end == RunEnd.COMPLETED
    assert last.eval_loss < base.eval_loss
    tuned = tuned_of(folder, tiny, case)
    assert evaluation_loss(tuned, made) == pytest.approx(last.eval_loss, abs=1e-5)
    assert str(tiny) not in "".join(file.read_text() for file in folder.glob("*.json"))
    if not ADAPTERS[case.adapter].trains_base_weights:
        config = json.loads((folder / "adapter_config.json").read_bytes())
        assert config["base_model_name_or_path"] == "toy"
        assert config["revision"] == "a" * 64
        # peft adds the other name of an embedding that is the head too.
        told_to_peft = config.keys() & case.fields.keys() - {"modules_to_save"}
        if "init_lora_weights" not in case.fields:
            assert {name: config[name] for name in told_to_peft} == {
                name: case.fields[name] for name in told_to_peft
            }

    if ADAPTERS[case.adapter].mergeable:
        assert_merges(folder, tiny, tmp_path / "merged")


@BY_NAME
def test_a_resumed_run_equals_the_straight_one(
    case: AdapterCase, plan: Callable[..., TrainingPlan], train: Train
) -> None:
    straight = train(plan(case, "straight"))
    first = train(plan(case, "first", stop_at_step=4))

    second = train(plan(case, "second", resume_dir=first.checkpoint_at(4)))

    assert losses(first, second) == losses(straight)
    assert first.eval_losses | second.eval_losses == straight.eval_losses
