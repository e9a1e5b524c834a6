"""RS-03 of the requirements: 40 rows, batches of 4, 2 epochs, stopped after step 4 or 13."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from lehr.training.reports import RunningReport
from tests.support.canonical_rows import a_chat, write_canonical
from tests.support.toy_model import write_toy_model
from tests.support.trainers import Told, a_plan
from tests.train.seen import SeenRow, watch_steps

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]

NAMES = [f"row-{number:02}" for number in range(40)]
STEPS = 20
TRAINING = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": 4,
    "save_steps": 4,
    "learning_rate": 1e-3,
}


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., TrainingPlan]:
    """Plan a run on all 40 rows."""
    chats = [a_chat(("user", name), ("assistant", "ok")) for name in NAMES]
    rows = write_canonical(tmp_path / "rows.jsonl.zst", chats)
    toy = write_toy_model(tmp_path / "toy")

    def build(name: str, **more: Any) -> TrainingPlan:
        spec = {"training": TRAINING, "data": {"validation_split": 0.0}}
        return a_plan(tmp_path / name, spec, model_dir=toy, dataset_file=rows, **more)

    return build


def names(steps: list[list[SeenRow]]) -> list[list[str]]:
    """Return the ids of the rows of each step."""
    return [[row.text.split("<|user|>")[1][: len("row-00")] for row in step] for step in steps]


@pytest.mark.parametrize("stop", [4, 13])
def test_each_row_is_seen_exactly_once_an_epoch_across_a_stop(
    plan: Callable[..., TrainingPlan],
    train: Callable[..., Told],
    monkeypatch: pytest.MonkeyPatch,
    stop: int,
) -> None:
    from services.trainer_runner.trainer.data import batches  # noqa: PLC0415 - loads torch

    read: list[int] = []
    whole = batches.SampleList.__getitem__

    def counted(self: Any, at: int) -> Any:
        read.append(at)
        return whole(self, at)

    monkeypatch.setattr(batches.SampleList, "__getitem__", counted)
    seen = watch_steps(monkeypatch)
    straight_told = train(plan("straight"))
    straight, seen[:] = names(seen), []

    first = train(plan("first", stop_at_step=stop))
    before, seen[:], read[:] = names(seen), [], []
    began = time.monotonic()
    second = train(plan("second", resume_dir=first.checkpoint_at(stop)))
    took = time.monotonic() - began
    after = names(seen)

    assert (first.end, second.end) == (RunEnd.USER_STOPPED, RunEnd.COMPLETED)
    assert (len(before), len(after)) == (stop, STEPS - stop)
    assert before + after == straight
    assert all(len(step) == 4 for step in straight)
    for epoch in (straight[:10], straight[10:]):
        assert sorted(itertools.chain(*epoch)) == NAMES
    assert straight[:10] != straight[10:]
    assert second.of(RunningReport)[0].start_step == stop
    assert list(first.losses) + list(second.losses) == list(range(1, STEPS + 1))
    assert first.losses | second.losses == straight_told.losses
    # Rows that were trained already cost no more than a look of their epoch's own.
    assert len(read) - 4 * (STEPS - stop) <= 4 * (stop % 10)
    # The whole resumed run, and so its first new step; generous for a busy machine.
    assert took < 60
