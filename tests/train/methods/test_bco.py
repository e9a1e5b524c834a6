"""Binary classifier optimisation against its formulas, written once more without our loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.samples.selection import Answers
from lehr.training.plan import TrainingPlan
from services.trainer_runner.pipes import StopFlag
from tests.support.trainers import StopWithin, Told
from tests.train.method_cases import Rows, preference_row, unpaired_row
from tests.train.references import FULL, LORA, answer_ids, base_of, data_of, model_of, plan_of

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

BETA = 0.3


def expected(plan: TrainingPlan, row: Rows) -> tuple[list[float], list[float]]:
    """Return losses and shifts of a plain loop: trl's running mean, the paper's cross-entropy."""
    import torch  # noqa: PLC0415 - takes seconds
    from trl.trainer.utils import disable_dropout_in_model  # noqa: PLC0415

    from services.trainer_runner.trainer.data.batches import epoch_order  # noqa: PLC0415

    data, training = data_of(plan, row), plan.spec.training
    model, base = model_of(plan), base_of(plan)
    disable_dropout_in_model(model)
    answers = Answers(data.train)
    order = epoch_order(len(answers), seed=training.seed, epoch=0)
    parameters = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=training.learning_rate, weight_decay=0.0)
    mean, seen = 0.0, 1e-24
    losses, shifts = [], []

    def logps(one: Any, answer: Any) -> torch.Tensor:
        told = answer.prompt.token_ids.tolist() + answer_ids(answer.completion)
        ids = torch.tensor(told)
        scores = one(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        begin = len(answer.prompt)
        return scores.gather(1, ids[1:, None])[begin - 1 :].sum()

    for step in range(training.max_steps):
        size = training.per_device_train_batch_size
        batch = [answers[at] for at in order[step * size : (step + 1) * size]]
        with torch.no_grad():
            reference = torch.stack([logps(base, answer) for answer in batch])
        rewards = BETA * (torch.stack([logps(model, answer) for answer in batch]) - reference)
        mean += (rewards.mean().item() - mean) * len(batch) / (seen + len(batch))
        seen += len(batch)
        signs = torch.tensor([1.0 if answer.is_wanted else -1.0 for answer in batch])
        loss = torch.log1p(torch.exp(-signs * (rewards - mean))).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, training.max_grad_norm)
        optimizer.step()
        losses.append(loss.item())
        shifts.append(mean)
    return losses, shifts


@pytest.mark.parametrize("adapter", [LORA, FULL], ids=["lora", "full"])
@pytest.mark.parametrize("row", [unpaired_row, preference_row])
def test_each_step_has_the_loss_and_the_shift_of_the_formulas(
    row: Rows, adapter: dict[str, Any], train: Callable[..., Told], tmp_path: Path, tiny: Path
) -> None:
    plan = plan_of(
        tmp_path,
        tiny,
        row,
        method="bco",
        adapter=adapter,
        hyperparameters={"beta": BETA},
        training={"lr_scheduler_type": "constant", "max_steps": 4},
    )

    told = train(plan)

    losses, shifts = expected(plan, row)
    assert list(told.losses.values()) == pytest.approx(losses, abs=1e-5)
    assert [step.values["delta"] for step in told.steps] == pytest.approx(shifts, abs=1e-5)
    assert abs(shifts[-1]) > 1e-3


@pytest.mark.parametrize("rows", [1, 4])
def test_a_step_that_is_dropped_leaves_no_reward_behind(
    rows: int, train: Callable[..., Told], tmp_path: Path, tiny: Path
) -> None:
    shape = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": 4 // rows}

    def run(name: str, stop: StopFlag | None = None, **more: Any) -> Told:
        plan = plan_of(
            tmp_path / name,
            tiny,
            unpaired_row,
            method="bco",
            training={**shape, "max_steps": 4, "learning_rate": 0.01},
        )
        return train(plan.model_copy(update=more), stop)

    straight = run("straight")
    # Four passes are looked at each step, or one, and the optimiser's step.
    looks = {1: 10, 4: 3}[rows]
    first = run("first", StopWithin(looks))
    second = run("second", resume_dir=first.checkpoint_at(max(first.losses)))

    assert "was not finished before the stop" in first.logs
    assert first.losses | second.losses == straight.losses
