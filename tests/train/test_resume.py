"""A resumed run equals the uninterrupted one to the bit: losses, weights, state, order of rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from lehr.training.reports import RunningReport
from tests.support.canonical_rows import a_chat, write_canonical
from tests.support.trainers import (
    TRAINER,
    StopWithin,
    Told,
    a_plan,
    kill_at,
    run_trainer,
    stop_at,
)

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]

Train = Callable[..., Told]
DROPOUT = {"type": "lora", "lora_dropout": 0.1}
#: Nine steps of four rows are an epoch of the 36 that are trained.
TRAINING = {
    "max_steps": 14,
    "eval_steps": 4,
    "save_steps": 5,
    "learning_rate": 0.01,
    "per_device_train_batch_size": 4,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 3,
}


@pytest.fixture
def plan(tmp_path: Path, tiny: Path) -> Callable[..., TrainingPlan]:
    chats = [
        a_chat(
            ("user", f"row-{number:02}"),
            ("assistant", f"It is the number {number * 7 % 13}."),
        )
        for number in range(40)
    ]
    rows = write_canonical(tmp_path / "rows.jsonl.zst", chats)

    def build(name: str, *, adapter: dict[str, Any], **more: Any) -> TrainingPlan:
        training = {**TRAINING, **more.pop("training", {})}
        data = {"max_length": 64, **more.pop("data", {})}
        spec = {"adapter": adapter, "training": training, "data": data}
        return a_plan(tmp_path / name, spec, model_dir=tiny, dataset_file=rows, **more)

    return build


def numbers(told: Told) -> dict[int, tuple[float, ...]]:
    """Return what of each step must be equal; seconds may differ."""
    names = ("loss", "learning_rate", "grad_norm", "num_tokens")
    return {step.step: tuple(step.values[name] for name in names) for step in told.steps}


def state_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a checkpoint that hold numbers, without times and ids."""
    kept = ("safetensors", "optimizer.json", "rng.json", "adapter_config.json", "config.json")
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.endswith(kept)}


@pytest.mark.parametrize(
    ("adapter", "training", "cut"),
    [
        (DROPOUT, {}, 7),
        (DROPOUT, {}, 8),
        (DROPOUT, {}, 9),
        (DROPOUT, {}, 13),
        ({"type": "full"}, {}, 6),
        (DROPOUT, {"precision": "bf16", "gradient_accumulation_steps": 2}, 6),
        ({"type": "full"}, {"gradient_checkpointing": True, "lr_scheduler_type": "linear"}, 10),
    ],
    ids=[
        "lora in mid-epoch",
        "lora before an evaluation",
        "lora between two epochs",
        "lora before the last step",
        "full",
        "lora bf16 accumulated",
        "full checkpointed after a save",
    ],
)
def test_a_run_stopped_and_resumed_equals_the_uninterrupted_one(
    plan: Callable[..., TrainingPlan],
    train: Train,
    adapter: dict[str, Any],
    training: dict[str, Any],
    cut: int,
) -> None:
    straight = train(plan("straight", adapter=adapter, training=training))
    first = train(plan("first", adapter=adapter, training=training, stop_at_step=cut))
    folder = first.checkpoint_at(cut)

    second = train(plan("second", adapter=adapter, training=training, resume_dir=folder))

    assert first.end == RunEnd.USER_STOPPED
    assert second.of(RunningReport)[0].start_step == cut
    assert numbers(first) | numbers(second) == numbers(straight)
    assert first.eval_losses | second.eval_losses == straight.eval_losses
    assert second.done == straight.done
    saved = {one.step: state_of(Path(one.path)) for one in straight.checkpoints}
    again = {one.step: state_of(Path(one.path)) for one in second.checkpoints}
    assert again == {step: saved[step] for step in again}
    assert second.checkpoints[-1].step == 14


@pytest.mark.parametrize(
    ("adapter", "training", "look", "kept"),
    [
        (DROPOUT, {}, 8, 7),
        (DROPOUT, {}, 10, 9),
        (DROPOUT, {"gradient_accumulation_steps": 3}, 19, 6),
        (DROPOUT, {"precision": "bf16", "gradient_accumulation_steps": 3}, 18, 5),
        ({"type": "full"}, {"gradient_accumulation_steps": 2}, 9, 4),
    ],
    ids=[
        "lora before its update",
        "lora in the first step of an epoch",
        "lora after the first of three passes",
        "lora bf16 before its update, saved by the cadence",
        "full before the one pass of an epoch's last step, evaluated",
    ],
)
def test_a_step_that_a_stop_overtakes_is_dropped_to_the_bit(
    plan: Callable[..., TrainingPlan],
    train: Train,
    adapter: dict[str, Any],
    training: dict[str, Any],
    look: int,
    kept: int,
) -> None:
    straight = train(plan("straight", adapter=adapter, training=training))
    before = train(plan("before", adapter=adapter, training=training, stop_at_step=kept))

    first = train(plan("first", adapter=adapter, training=training), StopWithin(look))
    folder = Path(first.checkpoints[-1].path)
    second = train(plan("second", adapter=adapter, training=training, resume_dir=folder))

    assert (first.end, first.done.step, first.steps[-1].step) == ("USER_STOPPED", kept, kept)
    assert state_of(folder) == state_of(before.checkpoint_at(kept))
    assert numbers(first) | numbers(second) == numbers(straight)
    assert first.eval_losses | second.eval_losses == straight.eval_losses
    assert second.done == straight.done
    assert state_of(second.checkpoint_at(14)) == state_of(straight.checkpoint_at(14))


def test_a_killed_process_resumes_to_the_bit_from_its_last_checkpoint(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    straight = train(plan("straight", adapter=DROPOUT))
    killed = run_trainer(TRAINER, plan("killed", adapter=DROPOUT), on_report=kill_at(6))
    folder = killed.checkpoint_at(5)

    resumed = run_trainer(TRAINER, plan("resumed", adapter=DROPOUT, resume_dir=folder))

    assert (killed.end, straight.end, resumed.end) == (None, *[RunEnd.COMPLETED] * 2)
    assert numbers(killed) | numbers(resumed) == numbers(straight)
    assert numbers(killed)[6] == numbers(resumed)[6]
    assert state_of(resumed.checkpoint_at(14)) == state_of(straight.checkpoint_at(14))


def test_a_process_asked_to_stop_saves_at_once_and_says_why(
    plan: Callable[..., TrainingPlan],
) -> None:
    told = run_trainer(
        TRAINER,
        plan("stopped", adapter=DROPOUT, training={"max_steps": 5000, "eval_steps": 5000}),
        on_report=stop_at(2, "BUDGET_EXHAUSTED"),
    )

    assert (told.status, told.end) == (0, RunEnd.BUDGET_EXHAUSTED)
    last = told.checkpoints[-1]
    assert (last.step, last.is_ordinary, last.resumable) == (told.done.step, True, True)
    assert "Traceback" not in told.errors


def test_each_row_is_seen_once_an_epoch_across_a_stop(
    plan: Callable[..., TrainingPlan], train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.trainer_runner.trainer.methods.sft import AnswerTrainer  # noqa: PLC0415

    def unpadded(batch: Any) -> list[tuple[int, ...]]:
        rows, lengths = batch["input_ids"].tolist(), batch["attention_mask"].sum(dim=1).tolist()
        return [tuple(row[:length]) for row, length in zip(rows, lengths, strict=True)]

    seen: list[list[tuple[int, ...]]] = []
    whole = AnswerTrainer.get_batch_samples

    def noted(self: Any, *args: Any) -> Any:
        batches, count = whole(self, *args)
        seen.append(list(itertools.chain.from_iterable(map(unpadded, batches))))
        return batches, count

    # Nothing reports which rows a batch is made of.
    monkeypatch.setattr(AnswerTrainer, "get_batch_samples", noted)
    training = {"max_steps": 18, "eval_steps": 18}
    train(plan("straight", adapter=DROPOUT, training=training))
    straight, seen[:] = list(seen), []
    first = train(plan("first", adapter=DROPOUT, training=training, stop_at_step=12))
    train(plan("next", adapter=DROPOUT, training=training, resume_dir=first.checkpoint_at(12)))

    assert seen == straight
    epochs = [list(itertools.chain(*straight[begin : begin + 9])) for begin in (0, 9)]
    assert [len(epoch) for epoch in epochs] == [36, 36]
    assert len(set(epochs[0])) == 36
    assert set(epochs[0]) == set(epochs[1])
    assert epochs[0] != epochs[1]


def test_each_row_is_seen_once_an_epoch_in_an_order_of_its_own() -> None:
    from services.trainer_runner.trainer.data.batches import EpochBatches  # noqa: PLC0415

    batches = EpochBatches(40, batch_size=4, seed=42)
    first = list(batches)
    batches.epoch = 1
    second = list(batches)

    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == list(range(40))
    assert first != second
    assert {len(batch) for batch in first} == {4}


def test_a_resume_with_other_threads_keeps_those_of_the_checkpoint(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    import torch  # noqa: PLC0415 - takes seconds

    first = train(plan("first", adapter=DROPOUT, stop_at_step=5))
    lineage = first.checkpoint_at(5) / "lehr.json"
    told = json.loads(lineage.read_text())
    told["environment"]["threads"] = 2
    lineage.write_text(json.dumps(told))

    train(plan("second", adapter=DROPOUT, resume_dir=first.checkpoint_at(5)))

    assert torch.get_num_threads() == 2


def test_a_run_that_had_ended_is_not_trained_further(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    first = train(plan("first", adapter=DROPOUT))

    again = train(plan("again", adapter=DROPOUT, resume_dir=first.checkpoint_at(14)))

    assert (again.steps, again.end) == ([], RunEnd.COMPLETED)
    assert state_of(again.checkpoint_at(14)) == state_of(first.checkpoint_at(14))


def test_a_packed_run_is_resumed_to_the_bit_and_takes_fewer_steps(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    packed: dict[str, Any] = {
        "adapter": DROPOUT,
        "data": {"packing": True},
        "training": {"max_steps": -1, "num_train_epochs": 2, "per_device_train_batch_size": 2},
    }
    straight = train(plan("straight", **packed))
    first = train(plan("first", **packed, stop_at_step=3))

    second = train(plan("second", **packed, resume_dir=first.checkpoint_at(3)))

    assert numbers(first) | numbers(second) == numbers(straight)
    assert second.done == straight.done
    assert len(straight.steps) < 2 * 36 / 2
    assert straight.steps[-1].values["num_tokens"] == 2 * tokens_of(straight)
    assert any("samples are packed into" in line for line in straight.logs.splitlines())


def tokens_of(told: Told) -> int:
    """Return the training tokens that the log counts."""
    [line] = [one for one in told.logs.splitlines() if one.startswith("training: 36 of 36")]
    return int(line.split("of ")[-1].split()[0])
