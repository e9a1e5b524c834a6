"""An evaluation needs the room of one batch, however many rows it has, and comes before step 1."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.training.reports import EvaluationReport, StepReport
from tests.support.canonical_rows import write_canonical
from tests.support.trainers import Told, a_plan

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]

VALIDATION_ROWS = 60
LONGEST = 41
"""The row whose answer fills the maximum length; the others are short."""


def a_question(number: int) -> dict[str, Any]:
    answer = "a long answer " * 60 if number == LONGEST else f"answer {number}"
    return {
        "messages": [
            {"role": "user", "content": f"question {number}"},
            {"role": "assistant", "content": answer},
        ]
    }


def tensor_bytes() -> int:
    """Return the bytes of all tensors that live."""
    import torch  # noqa: PLC0415 - takes seconds

    living = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    return sum(one.numel() * one.element_size() for one in living)


def test_an_evaluation_of_all_rows_before_the_first_step_keeps_nothing_of_any_batch(
    tmp_path: Path, tiny: Path, train: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.trainer_runner.trainer.methods import sft  # noqa: PLC0415 - takes seconds

    whole = sft.AnswerTrainer.evaluate_rows
    lengths: list[int] = []
    living: dict[int, int] = {}

    def watched(self: Any, go_on: Callable[[], bool]) -> Any:
        def look() -> bool:
            # Looking at all objects takes a while.
            if len(lengths) in (1, VALIDATION_ROWS - 1):
                living[len(lengths)] = tensor_bytes()
            return go_on()

        return whole(self, look)

    def measured(model: Any, batch: Any) -> Any:
        lengths.append(batch["input_ids"].shape[1])
        return loss_sum(model, batch)

    loss_sum = sft.answer_losses
    monkeypatch.setattr(sft.AnswerTrainer, "evaluate_rows", watched)
    monkeypatch.setattr(sft, "answer_losses", measured)
    files = [tmp_path / "train.jsonl.zst", tmp_path / "validation.jsonl.zst"]
    write_canonical(files[0], map(a_question, range(8)))
    write_canonical(files[1], map(a_question, range(VALIDATION_ROWS)))
    told = {
        "data": {"max_length": 128, "validation_dataset": "other"},
        "training": {"max_steps": 1, "per_device_eval_batch_size": 1},
    }
    plan = a_plan(
        tmp_path / "run", told, model_dir=tiny, dataset_file=files[0], validation_file=files[1]
    )

    reports = train(plan)

    first = [type(one) for one in reports.reports if isinstance(one, EvaluationReport | StepReport)]
    assert first[0] is EvaluationReport
    # All rows, the longest too, were tried before the first step.
    assert max(lengths[:VALIDATION_ROWS]) == 128
    # A batch's token ids may be longer than another's; logits of a single one would be far more.
    assert living[VALIDATION_ROWS - 1] - living[1] < 128 * 8 * 8
