"""Every method trains a tiny model: what should move moves, and a resumed run is the same run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.training.ends import RunEnd
from lehr.training.methods import METHODS
from lehr.training.plan import TrainingPlan
from tests.support.canonical_rows import a_row, write_canonical
from tests.support.trainers import Told, a_plan
from tests.train.method_cases import CASES, MethodCase

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]

Train = Callable[..., Told]
LORA: dict[str, Any] = {"type": "lora", "lora_dropout": 0.1}
FULL: dict[str, Any] = {"type": "full"}
BOTH = [
    pytest.param(LORA, id="lora"),
    pytest.param(FULL, id="full", marks=pytest.mark.slow),
]


@pytest.fixture
def plan(tmp_path: Path, tiny: Path, request: pytest.FixtureRequest) -> Callable[..., TrainingPlan]:
    def build(
        case: MethodCase,
        name: str,
        *,
        adapter: dict[str, Any],
        training: dict[str, Any] | None = None,
        **more: Any,
    ) -> TrainingPlan:
        rows = tmp_path / "rows.jsonl.zst"
        if not rows.exists():
            write_canonical(rows, map(a_row, map(case.row, range(40))))
        if case.has_teacher:
            more["teacher_dir"] = request.getfixturevalue("teacher")
        usual = {
            "max_steps": 8,
            "eval_steps": 4,
            "learning_rate": 0.01,
            "gradient_accumulation_steps": 2,
            "per_device_train_batch_size": 4,
            "lr_scheduler_type": "cosine",
        }
        spec = {
            "method": case.method,
            "hyperparameters": dict(case.hyperparameters),
            "adapter": adapter,
            "data": {"max_length": 96},
            "training": {**usual, **case.training, **(training or {})},
        }
        return a_plan(tmp_path / name, spec, model_dir=tiny, dataset_file=rows, **more)

    return build


def numbers(told: Told) -> dict[int, dict[str, float]]:
    """Return all values of each step that do not depend on the clock."""
    timed = {"tokens_per_second"}
    return {
        one.step: {name: value for name, value in one.values.items() if name not in timed}
        for one in told.steps
    }


def _variants_slow() -> list[Any]:
    """Return all cases; those beyond the first of each method are slow."""
    first = {case.method: case for case in reversed(CASES)}
    return [
        pytest.param(
            case, id=case.name, marks=[] if case is first[case.method] else pytest.mark.slow
        )
        for case in CASES
    ]


def test_every_method_has_a_case() -> None:
    assert {case.method for case in CASES} == set(METHODS)


@pytest.mark.parametrize("adapter", BOTH)
@pytest.mark.parametrize("case", _variants_slow())
def test_what_a_method_minimises_falls(
    case: MethodCase,
    adapter: dict[str, Any],
    plan: Callable[..., TrainingPlan],
    train: Train,
) -> None:
    told = train(plan(case, "run", adapter=adapter))

    base, *_, tuned = told.evaluations
    assert told.end == RunEnd.COMPLETED
    assert (base.step, tuned.step) == (0, 8)
    if case.falls == "eval_loss":
        assert tuned.eval_loss < base.eval_loss
    else:
        assert tuned.values[case.falls] < base.values[case.falls]
    if case.rises is not None:
        assert tuned.values[case.rises] > base.values[case.rises]


@pytest.mark.slow
@pytest.mark.parametrize("adapter", BOTH)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_stopped_and_resumed_run_equals_the_uninterrupted_one(
    case: MethodCase,
    adapter: dict[str, Any],
    plan: Callable[..., TrainingPlan],
    train: Train,
) -> None:
    straight = train(plan(case, "straight", adapter=adapter))
    first = train(plan(case, "first", adapter=adapter, stop_at_step=5))

    second = train(plan(case, "second", adapter=adapter, resume_dir=first.checkpoint_at(5)))

    assert first.end == RunEnd.USER_STOPPED
    assert numbers(first) | numbers(second) == numbers(straight)
    evaluations = {one.step: one.values for one in straight.evaluations}
    again = {one.step: one.values for one in [*first.evaluations, *second.evaluations]}
    assert again == evaluations
    assert first.eval_losses | second.eval_losses == straight.eval_losses


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if not (case.is_random or case.is_of_pass)],
    ids=lambda case: case.name,
)
def test_accumulated_passes_are_one_big_batch(
    case: MethodCase, plan: Callable[..., TrainingPlan], train: Train
) -> None:
    def losses(name: str, rows: int, passes: int) -> list[float]:
        shape = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": passes}
        told = train(plan(case, name, adapter={"type": "lora"}, training={"max_steps": 4, **shape}))
        return list(told.losses.values())

    assert losses("big", 8, 1) == pytest.approx(losses("small", 2, 4), abs=1e-5)
