"""The scripted trainer: the reports and folders of a real one, as the script says."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from lehr.training.progress import read_progress
from lehr.training.reports import LogReport, RunningReport
from services.trainer_runner.pipes import StopFlag
from services.trainer_runner.scripted import train
from tests.support.trainers import StopWithin, Told, a_plan

ES_01 = {10: 2.0, 20: 1.2, 30: 1.5, 40: 1.6, 50: 1.7, 60: 1.8, 70: 1.9}
EVERY_TEN = {"eval_steps": 10, "save_steps": 10}


def a_script(eval_losses: dict[int, float] | None = None, **script: Any) -> dict[str, Any]:
    steps = {step: {"eval_loss": loss} for step, loss in (eval_losses or {}).items()}
    return {"checkpoint_bytes": 16, "steps": steps, **script}


def follow(plan: TrainingPlan, stop: StopFlag | None = None) -> Told:
    told = Told()
    train(plan, told, stop or StopFlag())
    return told


class StopAfter(StopFlag):
    """Asks to stop at the n-th look."""

    def __init__(self, looks: int, reason: RunEnd = RunEnd.USER_STOPPED) -> None:
        super().__init__()
        self._left = looks
        self._reason = reason

    def asked(self) -> RunEnd | None:
        self._left -= 1
        return self._reason if self._left < 0 else None


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., TrainingPlan]:
    def build(name: str = "run", **spec: Any) -> TrainingPlan:
        more = {key: spec.pop(key) for key in ("resume_dir", "stop_at_step") if key in spec}
        return a_plan(tmp_path / name, spec, **more)

    return build


def test_es_01_an_early_stop_names_its_best_and_marks_its_checkpoints(
    plan: Callable[..., TrainingPlan],
) -> None:
    told = follow(
        plan(
            script=a_script(ES_01, total_steps=200),
            training=EVERY_TEN,
            early_stopping={"patience": 5},
        )
    )

    assert (told.end, told.done.step, told.done.best_step) == (RunEnd.EARLY_STOPPED, 70, 20)
    assert "Best is step 20" in told.logs
    assert [(one.step, one.is_best, one.is_final) for one in told.checkpoints] == [
        (10, True, False),
        (20, True, False),
        *((step, False, False) for step in (30, 40, 50, 60)),
        (70, False, True),
    ]


def test_a_run_without_a_finite_validation_loss_has_no_best(
    plan: Callable[..., TrainingPlan],
) -> None:
    losses = dict.fromkeys((10, 20, 30), math.nan)

    told = follow(plan(script=a_script(losses, total_steps=200), training=EVERY_TEN))

    assert (told.end, told.done.step, told.done.best_step) == (RunEnd.EARLY_STOPPED, 30, None)
    assert not any(one.is_best for one in told.checkpoints)
    assert "no finite validation loss was seen" in told.logs


def test_ml_01_numbers_that_are_not_finite_are_reported_as_they_are(
    plan: Callable[..., TrainingPlan],
) -> None:
    losses = [1.0, math.nan, math.inf, -math.inf, 0.5, 1e-320, 1e308]
    steps = {at: {"loss": loss} for at, loss in enumerate(losses, start=1)}
    steps[2]["grad_norm"] = math.nan

    told = follow(plan(script=a_script(steps=steps, total_steps=7)))

    assert [repr(report.values["loss"]) for report in told.steps] == list(map(repr, losses))
    assert told.end == RunEnd.COMPLETED
    warnings = [log.text for log in told.of(LogReport) if log.level == "warning"]
    assert "step 2: grad_norm is nan, not a finite number" in warnings


def test_a_loss_that_stays_not_finite_is_the_users_error(
    plan: Callable[..., TrainingPlan],
) -> None:
    steps = {at: {"loss": math.nan} for at in range(3, 20)}

    told = follow(plan(script=a_script(steps=steps, total_steps=20)))

    assert (told.end, told.done.step) == (RunEnd.USER_ERROR, 7)
    assert "lower learning_rate" in told.done.message


def test_the_base_model_is_evaluated_before_the_first_step(
    plan: Callable[..., TrainingPlan],
) -> None:
    told = follow(plan(script=a_script({0: 3.0}, total_steps=2)))

    kinds = [report.kind for report in told.reports if report.kind not in ("log",)]
    assert kinds[:3] == ["running", "evaluation", "step"]
    assert (told.done.baseline_loss, told.evaluations[0].is_best) == (3.0, False)


def test_without_validation_nothing_is_evaluated_and_nothing_stops_early(
    plan: Callable[..., TrainingPlan],
) -> None:
    told = follow(plan(script=a_script(total_steps=5), data={"validation_split": 0}))

    assert (told.evaluations, told.end) == ([], RunEnd.COMPLETED)
    assert [one.is_final for one in told.checkpoints] == [True]


@pytest.mark.parametrize("reason", [RunEnd.USER_STOPPED, RunEnd.BUDGET_EXHAUSTED])
def test_a_stop_saves_and_ends_with_its_reason(
    plan: Callable[..., TrainingPlan], reason: RunEnd
) -> None:
    told = follow(plan(script=a_script(total_steps=100)), StopAfter(9, reason))

    assert told.end == reason
    assert (told.checkpoints[-1].step, told.checkpoints[-1].is_ordinary) == (told.done.step, True)
    assert told.checkpoints[-1].step == told.steps[-1].step < 100


def test_a_stop_before_the_first_batch_computes_and_bills_nothing(
    plan: Callable[..., TrainingPlan],
) -> None:
    scripted = plan(script=a_script(total_steps=100))

    told = follow(scripted, StopAfter(0))

    assert (told.end, told.checkpoints, told.of(RunningReport)) == (RunEnd.USER_STOPPED, [], [])
    assert read_progress(scripted.progress_file).running_began == 0.0


def test_a_resumed_run_repeats_nothing_and_ends_as_the_uninterrupted_one(
    plan: Callable[..., TrainingPlan],
) -> None:
    spec = {
        "script": a_script(ES_01, total_steps=200),
        "training": EVERY_TEN,
        "early_stopping": {"patience": 5},
    }
    straight = follow(plan("straight", **spec))

    first = follow(plan("first", **spec, stop_at_step=47))
    second = follow(plan("second", **spec, resume_dir=first.checkpoint_at(47)))

    assert first.losses | second.losses == straight.losses
    assert first.losses.keys().isdisjoint(second.losses)
    assert second.done == straight.done
    assert second.of(RunningReport)[0].start_step == 47


@pytest.mark.parametrize("reason", [RunEnd.USER_STOPPED, RunEnd.BUDGET_EXHAUSTED])
def test_a_step_that_a_stop_overtakes_is_not_kept(
    plan: Callable[..., TrainingPlan], reason: RunEnd
) -> None:
    spec = {"script": a_script(total_steps=9), "training": EVERY_TEN}
    straight = follow(plan("straight", **spec))

    first = follow(plan("first", **spec), StopWithin(4, reason))
    second = follow(plan("second", **spec, resume_dir=first.checkpoint_at(3)))

    assert (first.end, list(first.losses), first.done.step) == (reason, [1, 2, 3], 3)
    assert [(one.step, one.is_ordinary) for one in first.checkpoints] == [(3, True)]
    assert "step 4 was not finished before the stop and is not kept" in first.logs
    assert first.losses | second.losses == straight.losses
    assert second.done == straight.done


def test_a_stop_within_the_first_step_leaves_nothing(plan: Callable[..., TrainingPlan]) -> None:
    told = follow(plan(script=a_script(total_steps=9)), StopWithin(1))

    assert (told.end, told.steps, told.checkpoints) == (RunEnd.USER_STOPPED, [], [])


def test_a_stop_within_the_first_step_of_a_resumed_run_keeps_what_it_came_from(
    plan: Callable[..., TrainingPlan],
) -> None:
    spec = {"script": a_script(total_steps=9)}
    first = follow(plan("first", **spec, stop_at_step=5))

    second = follow(plan("second", **spec, resume_dir=first.checkpoint_at(5)), StopWithin(1))

    assert (second.end, second.done.step, second.checkpoints) == (RunEnd.USER_STOPPED, 5, [])


def test_a_step_that_was_saved_before_the_stop_is_saved_again_as_the_last_one(
    plan: Callable[..., TrainingPlan],
) -> None:
    spec = {"script": a_script({4: 0.01}, total_steps=9), "training": {"save_steps": 2}}
    told = follow(plan(**spec | {"training": {"save_steps": 2, "eval_steps": 4}}), StopWithin(5))

    assert [one.step for one in told.checkpoints] == [2, 4, 4]
    before, last = told.checkpoints[1:]
    assert (last.is_ordinary, last.is_best, last.eval_loss) == (True, True, 0.01)
    # The agent may have left the first one out; if not, the store takes it for the same.
    same = {path.name: path.read_bytes() for path in Path(before.path).iterdir()}
    assert {path.name: path.read_bytes() for path in Path(last.path).iterdir()} == same


def test_the_state_of_a_dropped_step_is_as_old_as_the_step_before(
    plan: Callable[..., TrainingPlan],
) -> None:
    script = a_script(total_steps=9, steps={2: {"sleep_seconds": 5.0}})
    told = follow(plan(script=script), StopWithin(4))

    began = read_progress(plan(script=script).progress_file).running_began
    assert told.checkpoints[0].snapshot_monotonic - began < told.steps[0].elapsed_seconds + 0.05


def test_an_evaluation_cut_short_by_a_stop_is_made_up_for_on_resume(
    plan: Callable[..., TrainingPlan],
) -> None:
    spec = {"script": a_script({10: 0.01}, total_steps=30), "training": EVERY_TEN}
    first = follow(plan("first", **spec, stop_at_step=10))

    second = follow(plan("second", **spec, resume_dir=first.checkpoint_at(10)))

    assert list(first.eval_losses) == [0]
    assert list(second.eval_losses) == [10, 20, 30]
    best = second.checkpoints[0]
    assert (best.step, best.is_best, best.is_ordinary) == (10, True, False)


def test_patience_is_counted_across_a_resume(plan: Callable[..., TrainingPlan]) -> None:
    spec = {"script": a_script(ES_01, total_steps=200), "training": EVERY_TEN}
    first = follow(plan("first", **spec, stop_at_step=45))

    second = follow(plan("second", **spec, resume_dir=first.checkpoint_at(45)))

    assert (second.end, second.done.step) == (RunEnd.EARLY_STOPPED, 50)


def test_a_run_that_had_ended_gives_its_final_checkpoint_again_and_trains_nothing(
    plan: Callable[..., TrainingPlan],
) -> None:
    spec = {"script": a_script(total_steps=3)}
    first = follow(plan("first", **spec))

    again = follow(plan("again", **spec, resume_dir=first.checkpoint_at(3)))

    assert (again.end, again.steps, again.of(RunningReport)) == (RunEnd.COMPLETED, [], [])
    assert (again.checkpoints[0].is_final, again.checkpoints[0].step) == (True, 3)
    assert sorted(path.name for path in again.checkpoint_at(3).iterdir()) == sorted(
        path.name for path in first.checkpoint_at(3).iterdir()
    )


@pytest.mark.parametrize(
    ("file", "cure"),
    [("optimizer.safetensors", "weights only"), ("trainer_state.json", "cannot be read")],
)
def test_a_checkpoint_without_its_state_is_refused(
    plan: Callable[..., TrainingPlan], file: str, cure: str
) -> None:
    spec = {"script": a_script(total_steps=9)}
    folder = follow(plan("first", **spec, stop_at_step=5)).checkpoint_at(5)
    (folder / file).unlink()

    with pytest.raises(InvalidArgument, match=cure):
        follow(plan("second", **spec, resume_dir=folder))


@pytest.mark.parametrize("fact", ["spec_digest", "dataset_revision", "model_revision"])
def test_a_checkpoint_of_another_job_is_refused(
    plan: Callable[..., TrainingPlan], fact: str
) -> None:
    spec = {"script": a_script(total_steps=9)}
    folder = follow(plan("first", **spec, stop_at_step=5)).checkpoint_at(5)
    other = plan("second", **spec, resume_dir=folder).model_copy(update={fact: "other"})

    with pytest.raises(InvalidArgument, match="made with another") as refused:
        follow(other)

    assert refused.value.facts["fact"] == fact


def test_a_checkpoint_carries_the_series_so_far_as_strict_json(
    plan: Callable[..., TrainingPlan],
) -> None:
    steps = {2: {"loss": math.nan}}
    spec = {"script": a_script(steps=steps, total_steps=9)}
    first = follow(plan("first", **spec, stop_at_step=4))

    second = follow(plan("second", **spec, resume_dir=first.checkpoint_at(4)))

    lines = (second.checkpoint_at(9) / "series.jsonl").read_text().splitlines()
    told = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [one["step"] for one in told if one["kind"] == "step"] == list(range(1, 10))
    assert [one["step"] for one in told if one["kind"] == "evaluation"] == [0, 9]


def test_the_progress_clock_tells_begin_and_end(plan: Callable[..., TrainingPlan]) -> None:
    scripted = plan(script=a_script(total_steps=3))

    follow(scripted)

    progress = read_progress(scripted.progress_file)
    assert 0 < progress.running_began <= progress.last_progress == progress.compute_ended


def test_no_half_written_folder_is_left(plan: Callable[..., TrainingPlan]) -> None:
    scripted = plan(script=a_script(total_steps=3))

    follow(scripted)

    assert [path.name for path in scripted.output_dir.iterdir()] == ["checkpoint-3"]


def test_bytes_are_printed_as_they_are(
    plan: Callable[..., TrainingPlan], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    said = base64.b64encode(b"caf\xc3\xa9 \xff\xfe\n").decode()

    follow(plan(script=a_script(steps={1: {"print_bytes_base64": said}}, total_steps=1)))

    assert capfdbinary.readouterr().out == b"caf\xc3\xa9 \xff\xfe\n"


def test_a_scripted_lack_of_memory_ends_the_run(plan: Callable[..., TrainingPlan]) -> None:
    told = follow(plan(script=a_script(steps={3: {"die": "oom"}})))

    assert (told.end, len(told.steps)) == (RunEnd.OUT_OF_MEMORY, 2)


def test_weights_have_the_size_that_the_script_wants(plan: Callable[..., TrainingPlan]) -> None:
    told = follow(plan(script=a_script(total_steps=1, checkpoint_bytes=3_000_001)))

    weights = told.checkpoint_at(1) / "adapter_model.safetensors"
    head = int.from_bytes(weights.read_bytes()[:8], "little")
    assert weights.stat().st_size == 8 + head + 3_000_001
