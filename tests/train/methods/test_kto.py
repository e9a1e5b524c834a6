"""Kahneman-Tversky optimisation against trl's own trainer on the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.samples.selection import Answers
from lehr.training.methods.kto import KtoHyperparameters
from lehr.training.plan import TrainingPlan
from tests.support.trainers import Told
from tests.train.method_cases import Rows, preference_row, unpaired_row
from tests.train.references import (
    FULL,
    LORA,
    answer_ids,
    data_of,
    library_arguments,
    losses_of,
    model_of,
    plan_of,
)

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def theirs(plan: TrainingPlan, folder: Path, row: Rows) -> list[float]:
    from datasets import Dataset  # noqa: PLC0415 - takes seconds
    from transformers import AutoTokenizer  # noqa: PLC0415
    from trl import KTOConfig, KTOTrainer  # noqa: PLC0415

    from services.trainer_runner.trainer.data.batches import epoch_order  # noqa: PLC0415

    answers = Answers(data_of(plan, row).train)
    rows = []
    for at in epoch_order(len(answers), seed=plan.spec.training.seed, epoch=0):
        answer = answers[at]
        rows.append(
            {
                "prompt_ids": answer.prompt.token_ids.tolist(),
                "completion_ids": answer_ids(answer.completion),
                "label": answer.is_wanted,
            }
        )
    own = plan.spec.hyperparameters_as(KtoHyperparameters).model_dump(exclude={"type"})
    if own["loss_type"] == "kto":
        # As trl shifts answers within the batches that it makes of rows in this order.
        size = plan.spec.training.per_device_train_batch_size
        for begin in range(0, len(rows), size):
            batch = rows[begin : begin + size]
            for place, one in enumerate(batch):
                one["KL_completion_ids"] = batch[place - 1]["completion_ids"]
    return losses_of(
        KTOTrainer,
        model=model_of(plan),
        args=KTOConfig(**library_arguments(plan, folder), **own),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(plan.model_dir),
    )


@pytest.mark.parametrize("adapter", [LORA, FULL], ids=["lora", "full"])
@pytest.mark.parametrize("row", [unpaired_row, preference_row])
@pytest.mark.parametrize("loss_type", ["kto", "apo_zero_unpaired"])
def test_each_step_has_the_loss_of_trl(
    loss_type: str,
    row: Rows,
    adapter: dict[str, Any],
    train: Callable[..., Told],
    tmp_path: Path,
    tiny: Path,
) -> None:
    own = {"loss_type": loss_type, "desirable_weight": 1.3, "undesirable_weight": 0.8}
    training = {"max_steps": 5, "learning_rate": 0.01, "per_device_train_batch_size": 3}
    plan = plan_of(
        tmp_path,
        tiny,
        row,
        method="kto",
        adapter=adapter,
        hyperparameters=own,
        training=training,
    )

    told = train(plan)

    assert list(told.losses.values()) == pytest.approx(theirs(plan, tmp_path, row), abs=1e-5)
    # Else the answers of other rows would have been compared for nothing.
    assert (max(step.values["kl"] for step in told.steps) > 0) is (loss_type == "kto")


@pytest.mark.parametrize(("rows", "passes", "evaluated"), [(1, 4, 1), (2, 2, 4)])
def test_accumulated_passes_are_one_batch_and_evaluations_do_not_depend_on_their_batches(
    rows: int,
    passes: int,
    evaluated: int,
    train: Callable[..., Told],
    tmp_path: Path,
    tiny: Path,
) -> None:
    def run(name: str, **shape: int) -> Told:
        plan = plan_of(
            tmp_path / name,
            tiny,
            unpaired_row,
            method="kto",
            adapter=FULL,
            # Answers of other rows become likelier too where good ones are what counts.
            hyperparameters={"undesirable_weight": 0.02},
            training={**shape, "max_steps": 5, "learning_rate": 0.01},
            data={"validation_split": 0.25},
        )
        return train(plan)

    big = run("big", per_device_train_batch_size=4, per_device_eval_batch_size=6)
    small = run(
        "small",
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=passes,
        per_device_eval_batch_size=evaluated,
    )

    names = {"kl", "rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen"}
    # The fifth step holds the two rows that are left of 18.
    assert len(big.losses) == 5
    for reports, others in ((big.steps, small.steps), (big.evaluations, small.evaluations)):
        assert len(reports) == len(others)
        for one, other in zip(reports, others, strict=False):
            told = sorted(names & one.values.keys())
            assert told == sorted(names & other.values.keys())
            assert [one.values[name] for name in told] == pytest.approx(
                [other.values[name] for name in told], abs=1e-4
            )
    assert list(big.losses.values()) == pytest.approx(list(small.losses.values()), abs=1e-5)
    assert list(big.eval_losses.values()) == pytest.approx(
        list(small.eval_losses.values()), abs=1e-5
    )
    assert any(names <= step.values.keys() for step in big.steps)
    # Else z would be 0 whatever it is computed from.
    assert max(step.values["kl"] for step in big.steps) > 1e-3
    assert big.evaluations[-1].values["kl"] > 1e-3


def test_a_pair_makes_two_rows_and_the_log_says_so(
    train: Callable[..., Told], tmp_path: Path, tiny: Path
) -> None:
    training = {"max_steps": -1, "num_train_epochs": 1, "per_device_train_batch_size": 6}

    told = train(plan_of(tmp_path, tiny, preference_row, method="kto", training=training))

    assert len(told.losses) == 24 * 2 / 6
    assert "the answers of preference rows are 48 rows of batches" in told.logs
