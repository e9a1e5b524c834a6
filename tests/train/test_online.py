"""Methods that write their own completions: what is refused first, and what a run must not lose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from tests.support.canonical_rows import a_row, write_canonical
from tests.support.trainers import StopWithin, Told, a_plan
from tests.train.method_cases import question_row

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

Train = Callable[..., Told]
BY_LENGTH: dict[str, Any] = {"type": "length", "unit": "characters", "min": 60}
TRAINING = {
    "max_steps": 4,
    "eval_steps": 2,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": 0.02,
}


@pytest.fixture
def plan(tmp_path: Path, tiny: Path) -> Callable[..., TrainingPlan]:
    def build(
        name: str = "run",
        *,
        method: str = "grpo",
        own: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> TrainingPlan:
        rows = write_canonical(
            tmp_path / "rows.jsonl.zst", map(a_row, map(question_row, range(40)))
        )
        spec = {
            "method": method,
            "hyperparameters": {
                "rewards": [BY_LENGTH],
                "max_completion_length": 6,
                "temperature": 0.2,
                **({"num_generations": 4} if method == "grpo" else {}),
                **(own or {}),
            },
            "data": {"max_length": 96},
            "training": {**TRAINING, **(training or {})},
        }
        return a_plan(tmp_path / name, spec, model_dir=tiny, dataset_file=rows, **more)

    return build


def refusal(train: Train, plan: TrainingPlan) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as error:
        train(plan)
    return error.value


def test_completions_that_do_not_fit_are_refused_with_what_would(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    # The longest prompt has 18 tokens and the model reads 1024.
    error = refusal(train, plan(own={"max_completion_length": 1010}))

    assert error.reason == "NO_ROOM_FOR_COMPLETIONS"
    assert "prompts have up to 18 tokens" in error.message
    assert "max_completion_length to at most 1006" in error.message
    assert "data.max_length to at most 14" in error.message


def test_a_column_that_no_row_has_is_refused_by_name(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    named = {"type": "exact_match", "reference": "{{item.solution}}"}
    error = refusal(train, plan(own={"rewards": [named, {"type": "exact_match", "name": "right"}]}))

    assert error.reason == "COLUMN_MISSING"
    assert "reads the column 'solution', which none of the 36 training rows has" in error.message
    assert "they have answer" in error.message


def test_completions_are_scored_against_the_row_that_they_answer(
    plan: Callable[..., TrainingPlan], train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.trainer_runner.trainer.online import judging  # noqa: PLC0415

    seen: list[tuple[str, str]] = []
    score = judging.score

    def watched(rewards: Any, scored: Any, **more: Any) -> dict[str, float]:
        seen.append((scored.item["answer"], prompt_of[-1]))
        return score(rewards, scored, **more)

    prompt_of: list[str] = []
    scores = judging.Judge.scores

    def one_by_one(self: Any, answered: Any) -> Any:
        for one in answered:
            prompt_of.append(self._tokenizer.decode(one.prompt.tolist()))
            scores(self, [one])
        return scores(self, answered)

    monkeypatch.setattr(judging, "score", watched)
    monkeypatch.setattr(judging.Judge, "scores", one_by_one)
    rewards = [BY_LENGTH, {"type": "text_similarity", "evaluation_metric": "fuzzy_match"}]
    train(plan(own={"rewards": rewards}))

    checked = 0
    for answer, prompt in seen:
        number = prompt.partition("item ")[2].partition("?")[0]
        checked += answer == question_row(int(number))["answer"]
    # Each is scored alone, where its prompt is known, and again among the others.
    assert checked >= len(prompt_of)
    assert len({prompt for _, prompt in seen}) > 4


def test_what_a_reward_cannot_score_is_counted_and_does_not_end_the_run(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    as_json = {"type": "json_schema", "json_schema": {"type": "object"}}
    told = train(plan(own={"rewards": [BY_LENGTH, as_json], "reward_weights": [2.0, 1.0]}))

    assert told.end == RunEnd.COMPLETED
    for step in told.steps:
        assert step.values["rewards/json_schema/failures"] == 8
        mean = step.values["rewards/length/mean"]
        assert step.values["reward"] == pytest.approx(2 * mean)
    assert told.logs.count("reward json_schema: ") == 1
    assert "earn 0: NOT_JSON" in told.logs


def test_minus_the_mean_reward_is_what_is_minimised(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    told = train(plan())

    assert "validation loss is minus the mean reward" in told.logs
    for one in told.evaluations:
        assert one.eval_loss == -one.values["reward"]
        assert one.values["rewards/length/mean"] == pytest.approx(one.values["reward"])


def test_an_evaluation_draws_nothing_from_the_training(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    often = train(plan("often", training={"eval_steps": 1}))
    seldom = train(plan("seldom", training={"eval_steps": 4}))

    assert often.losses == seldom.losses
    assert len(often.evaluations) > len(seldom.evaluations)


@pytest.mark.parametrize("look", [1, 4, 9, 13])
def test_a_stop_while_completions_are_written_is_obeyed_and_loses_nothing(
    look: int, plan: Callable[..., TrainingPlan], train: Train
) -> None:
    """A step looks once a token, six times, and twice at its passes; the next one at those only."""
    own = {"num_iterations": 2}
    straight = train(plan("straight", own=own))
    first = train(plan("first", own=own), StopWithin(look))

    assert first.end == RunEnd.USER_STOPPED
    if look < 9:
        assert not first.checkpoints
        return
    step = first.checkpoints[-1].step
    assert step == (1 if look == 9 else 2)
    second = train(plan("second", own=own, resume_dir=first.checkpoint_at(step)))
    again = {**first.losses, **second.losses}
    assert again == straight.losses


def test_the_last_step_of_an_epoch_has_whole_groups(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    shape = {"max_steps": -1, "num_train_epochs": 1, "per_device_train_batch_size": 10}
    told = train(plan(own={"num_iterations": 2}, training={**shape, "eval_steps": 50}))

    # 144 rows in steps of 20: 7 whole steps twice, and one of 4 rows.
    assert told.end == RunEnd.COMPLETED
    assert len(told.steps) == 15
    assert told.steps[-1].epoch == 1.0


def test_a_reward_model_scores_whole_texts(
    plan: Callable[..., TrainingPlan], train: Train, tiny: Path, tmp_path: Path
) -> None:
    folder = _reward_model(tiny, tmp_path / "judge")
    own = {"rewards": [{"type": "reward_model", "model": "judge"}]}

    assert refusal(train, plan("missing", own=own)).reason == "REWARD_MODEL_UNUSABLE"
    told = train(plan(own=own, reward_model_dirs={"judge": folder}))

    assert told.end == RunEnd.COMPLETED
    assert all(step.values["rewards/reward_model/std"] > 0 for step in told.steps)


def _reward_model(tiny: Path, folder: Path) -> Path:
    import shutil  # noqa: PLC0415

    import torch  # noqa: PLC0415
    from transformers import AutoModelForSequenceClassification  # noqa: PLC0415

    shutil.copytree(tiny, folder)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(tiny, num_labels=1, dtype="float32")
    model.save_pretrained(folder)
    return folder


def test_a_reward_model_reads_each_text_to_its_own_end(tiny: Path, tmp_path: Path) -> None:
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from transformers import AutoModelForSequenceClassification  # noqa: PLC0415

    from lehr.samples.files import TokenizerFiles  # noqa: PLC0415
    from services.trainer_runner.trainer.online.judging import (  # noqa: PLC0415
        Answered,
        RewardModel,
    )
    from services.trainer_runner.trainer.online.writing import Completion  # noqa: PLC0415

    folder = _reward_model(tiny, tmp_path / "judge")
    like = TokenizerFiles.read(tiny).tokenizer()
    judge = RewardModel.load("judge", {"judge": folder}, like=like, device="cpu")
    texts = [((5, 6, 7), (8, 0)), ((5, 6), (9,)), ((5,), (6, 7, 8, 9, 10))]
    answered = [
        Answered(
            prompt=np.array(prompt, dtype=np.int32),
            completion=Completion(token_ids=tokens, is_whole=True),
            item={},
        )
        for prompt, tokens in texts
    ]

    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype="float32").eval()
    model.config.pad_token_id = None
    with torch.no_grad():
        alone = [model(torch.tensor([[*one, *two]])).logits.item() for one, two in texts]
    assert judge.scores(answered) == pytest.approx(alone, abs=1e-5)


def test_a_teacher_with_other_tokens_is_refused(
    plan: Callable[..., TrainingPlan], train: Train, tiny: Path, tmp_path: Path
) -> None:
    import json  # noqa: PLC0415
    import shutil  # noqa: PLC0415

    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    told = json.loads((other / "tokenizer.json").read_text())
    told["added_tokens"][0]["content"] = "<|another|>"
    (other / "tokenizer.json").write_text(json.dumps(told))
    spec = plan(method="online_dpo").spec.model_dump(mode="json")
    spec.update(method="distill", hyperparameters={"teacher_model": "t"})
    del spec["script"], spec["name"], spec["model"], spec["dataset"]
    base = plan()

    def distilling(name: str, **more: Any) -> TrainingPlan:
        return a_plan(tmp_path / name, spec, model_dir=tiny, dataset_file=base.dataset_file, **more)

    assert refusal(train, distilling("none")).reason == "TEACHER_UNUSABLE"
    assert "other tokens" in refusal(train, distilling("other-run", teacher_dir=other)).message
