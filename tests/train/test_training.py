"""Real trainings of a tiny model: what is learnt, saved and loaded again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.samples.canonical import read_canonical
from lehr.samples.prepare import prepare
from lehr.samples.selection import Sample
from lehr.samples.tokens import SampleTokenizer
from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from lehr.training.reports import LogReport
from tests.support.canonical_rows import a_row, table_of, write_canonical
from tests.support.toy_model import write_toy_model
from tests.support.trainers import Told, a_plan

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]

Train = Callable[..., Told]


def a_question(number: int) -> dict[str, Any]:
    answer = f"Item {number} is the number {number * 7 % 13} of the list."
    return {
        "messages": [
            {"role": "user", "content": f"What is item {number}?"},
            {"role": "assistant", "content": answer},
        ]
    }


@pytest.fixture
def plan(tmp_path: Path, tiny: Path) -> Callable[..., TrainingPlan]:
    rows = write_canonical(tmp_path / "rows.jsonl.zst", map(a_question, range(40)))

    def build(name: str = "run", *, model_dir: Path = tiny, **spec: Any) -> TrainingPlan:
        training = {"max_steps": 8, "eval_steps": 4, "learning_rate": 0.01}
        told = {
            "data": {"max_length": 128},
            **spec,
            "training": {**training, **spec.get("training", {})},
        }
        return a_plan(tmp_path / name, told, model_dir=model_dir, dataset_file=rows)

    return build


def validation_samples(plan: TrainingPlan) -> list[Sample]:
    tokenizer = SampleTokenizer.load(plan.model_dir)
    rows = [located.row for located in read_canonical(plan.dataset_file)]
    table = table_of(rows, tokenizer)
    return list(prepare(table, data=plan.spec.data, context=tokenizer.context).validation)


def plain_loss(model: Any, samples: list[Sample]) -> float:
    """Compute the mean loss per trained token with transformers alone, sample by sample."""
    import torch  # noqa: PLC0415 - takes seconds

    total, count = 0.0, 0
    for sample in samples:
        ids, labels = torch.tensor([list(sample.token_ids)]), torch.tensor([sample.labels()])
        targets = int((labels[:, 1:] != -100).sum())
        with torch.no_grad():
            total += model(input_ids=ids, labels=labels).loss.item() * targets
        count += targets
    return total / count


@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_validation_loss_falls_below_that_of_the_base_model(
    plan: Callable[..., TrainingPlan], train: Train, adapter: str
) -> None:
    told = train(plan(adapter={"type": adapter}))

    assert told.end == RunEnd.COMPLETED
    assert told.done.best_loss < 0.95 * told.done.baseline_loss  # type: ignore[operator]
    assert list(told.eval_losses) == [0, 4, 8]
    assert "of 40 rows" not in told.logs
    assert "training: 36 of 36 rows are used" in told.logs


def test_the_adapter_loads_with_plain_peft_and_gives_the_reported_loss(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    from peft import PeftModel  # noqa: PLC0415 - takes seconds
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    trained = plan(adapter={"lora_dropout": 0.1})
    told = train(trained)
    base = AutoModelForCausalLM.from_pretrained(trained.model_dir, dtype="float32")
    samples = validation_samples(trained)
    before = plain_loss(base, samples)

    tuned = PeftModel.from_pretrained(base, told.checkpoint_at(8)).eval()

    assert plain_loss(tuned, samples) == pytest.approx(told.eval_losses[8], abs=1e-4)
    assert before == pytest.approx(told.done.baseline_loss, abs=1e-4)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_fully_tuned_model_loads_with_the_same_logits_whether_or_not_it_shares_weights(
    plan: Callable[..., TrainingPlan], train: Train, tmp_path: Path, is_tied: bool
) -> None:
    from safetensors import safe_open  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - takes seconds

    toy = write_toy_model(tmp_path / "toy", tie_word_embeddings=is_tied)
    trained = plan(model_dir=toy, adapter={"type": "full"})
    told = train(trained)
    folder = told.checkpoint_at(8)

    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()

    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert ("lm_head.weight" in file.keys()) is not is_tied  # noqa: SIM118
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is is_tied
    is_shared = loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    assert is_shared is is_tied
    loss = plain_loss(loaded, validation_samples(trained))
    assert loss == pytest.approx(told.eval_losses[8], abs=1e-4)


@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_no_file_of_a_checkpoint_holds_a_pickle_or_a_path_of_this_machine(
    plan: Callable[..., TrainingPlan], train: Train, tmp_path: Path, adapter: str
) -> None:
    folder = train(plan(adapter={"type": adapter})).checkpoint_at(8)

    files = sorted(folder.iterdir())
    assert {path.suffix for path in files} == {".json", ".jsonl", ".safetensors"}
    assert not any(str(tmp_path.parent).encode() in path.read_bytes() for path in files)


def test_an_adapter_names_its_base_by_catalog_name_and_digest(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    folder = train(plan()).checkpoint_at(8)

    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("toy", "a" * 64)


def test_a_run_that_gets_worse_stops_early_and_keeps_its_best(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    training = {"learning_rate": 3.0, "max_steps": 40, "eval_steps": 1, "max_grad_norm": 0}

    told = train(plan(training=training, adapter={"type": "full"}))

    assert told.end == RunEnd.EARLY_STOPPED
    assert told.done.step == (told.done.best_step or 0) + 3
    assert told.checkpoints[-1].is_final
    assert [one.step for one in told.checkpoints if one.is_best][-1:] == [told.done.best_step]


def test_a_loss_that_is_no_number_is_told_and_ends_the_run(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    training = {"learning_rate": 1e20, "max_steps": 40, "eval_steps": 20}

    told = train(plan(training=training, adapter={"type": "full"}))

    assert told.end == RunEnd.USER_ERROR
    assert [math.isfinite(loss) for loss in told.losses.values()][-5:] == [False] * 5
    assert "lower learning_rate" in told.done.message
    assert any(log.level == "warning" for log in told.of(LogReport))


def test_accumulation_gives_the_result_of_one_big_batch(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    big = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "max_steps": 2}
    small = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "max_steps": 2}

    one, many = train(plan("one", training=big)), train(plan("many", training=small))

    assert list(many.losses.values()) == pytest.approx(list(one.losses.values()), abs=1e-5)
    norms = [[step.values["grad_norm"] for step in told.steps] for told in (one, many)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert [step.epoch for step in one.steps] == [step.epoch for step in many.steps]


def test_evaluation_counts_predicted_tokens_not_batches(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - takes seconds

    # Of answers cut to their last 12 tokens the first is trained, but nothing predicts it.
    plans = [
        plan(
            f"by-{size}",
            training={"per_device_eval_batch_size": size, "max_steps": 1},
            data={"max_length": 12},
        )
        for size in (1, 3)
    ]
    expected = plain_loss(
        AutoModelForCausalLM.from_pretrained(plans[0].model_dir, dtype="float32"),
        validation_samples(plans[0]),
    )

    baselines = [train(one).done.baseline_loss for one in plans]

    assert baselines == pytest.approx([expected] * 2, rel=1e-6)


def test_the_loss_is_that_of_the_library_on_the_same_batch(tiny: Path) -> None:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - takes seconds

    from services.trainer_runner.trainer.data.batches import collate  # noqa: PLC0415
    from services.trainer_runner.trainer.methods.sft import (  # noqa: PLC0415
        answer_losses,
        target_count,
    )

    rows = [a_row(a_question(number)) for number in (1, 22, 333)]
    samples = [one.sample for one in SampleTokenizer.load(tiny).encode(rows)]
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype="float32").eval()
    batch = collate(samples, pad_id=0)

    ours = answer_losses(model, batch).sum().item() / target_count(batch)

    assert ours == pytest.approx(model(**batch).loss.item(), rel=1e-6)


@pytest.mark.parametrize("pad", ["</s>", "<pad>"])
def test_padding_is_never_trained_even_if_it_is_the_end_token(tmp_path: Path, pad: str) -> None:
    from services.trainer_runner.trainer.data.batches import IGNORE, collate  # noqa: PLC0415

    tokenizer = SampleTokenizer.load(write_toy_model(tmp_path, pad_token=pad))
    chats = [
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": said}]}
        for said in ("Yo", "Yo yo yo")
    ]
    samples = [one.sample for one in tokenizer.encode(list(map(a_row, chats)))]

    batch = collate(samples, pad_id=tokenizer.eos_token_id or 0)

    trained = (batch["labels"] != IGNORE).sum(dim=1).tolist()
    padded = (batch["attention_mask"] == 0).sum(dim=1).tolist()
    assert (trained, padded) == ([3, 9], [6, 0])
    assert (batch["labels"][batch["attention_mask"] == 0] == IGNORE).all()


def test_base_and_tuned_model_answer_the_same_question(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    from services.trainer_runner.trainer.answer import answers  # noqa: PLC0415

    trained = plan()
    folder = train(trained).checkpoint_at(8)

    said = answers(trained.model_dir, folder, "What is item 3?", max_new_tokens=8)

    # Random weights have nothing to say, but they say it.
    assert {name: type(answer) for name, answer in said.items()} == {"base": str, "tuned": str}


def test_prompt_and_completion_rows_are_trained_too(
    plan: Callable[..., TrainingPlan], train: Train, tmp_path: Path
) -> None:
    rows = [{"prompt": f"{number} + 1 = ", "completion": str(number + 1)} for number in range(20)]
    trained = plan().model_copy(update={"dataset_file": write_canonical(tmp_path / "sums", rows)})

    told = train(trained)

    assert told.done.best_loss < told.done.baseline_loss  # type: ignore[operator]


def test_a_model_with_a_tensor_missing_is_refused(
    plan: Callable[..., TrainingPlan], train: Train, tmp_path: Path
) -> None:
    toy = write_toy_model(tmp_path / "toy", tie_word_embeddings=True)
    config = json.loads((toy / "config.json").read_text())
    (toy / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))

    with pytest.raises(InvalidArgument, match="weights are incomplete"):
        train(plan(model_dir=toy))


def test_a_tokenizer_of_another_model_is_refused(
    plan: Callable[..., TrainingPlan], train: Train, tmp_path: Path, tiny: Path
) -> None:
    toy = write_toy_model(tmp_path / "toy")
    for name in ("config.json", "model.safetensors"):
        (toy / name).write_bytes((tiny / name).read_bytes())
    rows = [{"prompt": "a", "completion": chr(0x4F0)}] * 2
    file = write_canonical(tmp_path / "rare.jsonl.zst", rows)
    lone = plan(model_dir=toy, data={"max_length": 8, "validation_split": 0})

    with pytest.raises(InvalidArgument, match="knows 384 tokens only"):
        train(lone.model_copy(update={"dataset_file": file}))


def test_weights_that_are_no_safetensors_are_refused(
    plan: Callable[..., TrainingPlan], train: Train, tmp_path: Path
) -> None:
    toy = write_toy_model(tmp_path / "toy")
    (toy / "model.safetensors").rename(toy / "pytorch_model.bin")

    with pytest.raises(InvalidArgument, match="the model cannot be loaded"):
        train(plan(model_dir=toy))


def test_layers_that_do_not_exist_are_refused(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    with pytest.raises(InvalidArgument, match="the adapter does not fit the model"):
        train(plan(adapter={"target_modules": ["no_such_layer"]}))


def test_want_of_memory_is_an_end_with_advice(
    plan: Callable[..., TrainingPlan], train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch  # noqa: PLC0415 - takes seconds

    from services.trainer_runner.trainer.methods import sft  # noqa: PLC0415

    whole = sft.AnswerTrainer.training_step

    def lacking(self: Any, *args: Any) -> Any:
        if self.state.global_step == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return whole(self, *args)

    # No machine of the tests can be made to run out of memory at a given step.
    monkeypatch.setattr(sft.AnswerTrainer, "training_step", lacking)
    told = train(plan())

    assert (told.end, told.done.step) == (RunEnd.OUT_OF_MEMORY, 3)
    assert "Tried to allocate 2.00 GiB" in told.done.message
    assert "a smaller per_device_train_batch_size" in told.done.message
