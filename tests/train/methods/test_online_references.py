"""GRPO, RLOO, online DPO and distillation: losses of trl and of the formulas, on equal texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lehr.training.plan import TrainingPlan
from tests.train.method_cases import question_row
from tests.train.references import FULL, LORA, data_of, plan_of, setting_of

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

GROUP = 4
LENGTHS = (3, 9, 5, 5, 12, 2, 7, 1)
LIMIT = 12
REWARDS: dict[str, Any] = {
    "rewards": [{"type": "length", "min": 10}],
    "max_completion_length": LIMIT,
    "temperature": 0.7,
}
LOSSES: list[dict[str, Any]] = [
    {"loss_type": "grpo"},
    {"loss_type": "grpo", "beta": 0.04, "epsilon_high": 0.28, "delta": 1.5},
    {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    {"loss_type": "dr_grpo", "scale_rewards": "none"},
    {"loss_type": "dapo", "scale_rewards": "batch"},
    {"loss_type": "dapo", "mask_truncated_completions": True},
    {"loss_type": "bnpo"},
    {"loss_type": "cispo", "epsilon_high": 5.0},
    {"loss_type": "sapo"},
    {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    {"loss_type": "vespo"},
]


def a_setting(folder: Path, tiny: Path, method: str, adapter: Any, **own: Any) -> Any:
    """Return what a trainer of ``method`` is made of."""
    plan = plan_of(
        folder,
        tiny,
        question_row,
        method=method,
        adapter=adapter,
        hyperparameters=own,
        training={"per_device_train_batch_size": 8},
    )
    setting = setting_of(plan, data_of(plan, question_row))
    return replace(setting, row_count=plan.spec.hyperparameters.rows_per_epoch(96, rows_per_step=8))


def written(lengths: Sequence[int] = LENGTHS) -> list[Any]:
    """Return completions of some tokens each; those of the limit's length were cut off."""
    from services.trainer_runner.trainer.online.writing import Completion  # noqa: PLC0415

    return [
        Completion(
            token_ids=(*range(40 + 3 * at, 39 + 3 * at + length), 2 if length < LIMIT else 30),
            is_whole=length < LIMIT,
        )
        for at, length in enumerate(lengths)
    ]


def shifted(model: Any) -> None:
    """Change the weights a little, always in the same way."""
    import torch  # noqa: PLC0415

    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and ".ref." not in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


def theirs(kind: Any, config: Any, plan: TrainingPlan, model: Any, **options: Any) -> Any:
    """Return trl's trainer, which is given our completions instead of writing its own."""
    from datasets import Dataset  # noqa: PLC0415
    from transformers import AutoTokenizer  # noqa: PLC0415

    class Given(kind):  # type: ignore[misc]
        def _generate(self, prompts: Any) -> Any:
            ids = [list(one.token_ids) for one in written()]
            prompt_ids = [prompt for prompt in self.given for _ in range(GROUP)]
            told = (prompt_ids, ids, None, [""] * len(ids), None, {}, None, None)
            return told if kind.__name__ == "GRPOTrainer" else (prompt_ids, ids, [""] * len(ids))

    trainer = Given(
        model=model,
        reward_funcs=[
            lambda completion_ids, **_: [min(len(one) / 10, 1) for one in completion_ids]
        ],
        args=config(
            output_dir=str(plan.output_dir),
            per_device_train_batch_size=8,
            num_generations=GROUP,
            max_completion_length=LIMIT,
            temperature=0.7,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            report_to=[],
            disable_tqdm=True,
            disable_dropout=True,
            max_steps=1,
            **options,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 8}),
        processing_class=AutoTokenizer.from_pretrained(plan.model_dir, padding_side="left"),
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def losses(ours: Any, other: Any, numbers: list[int]) -> tuple[float, float]:
    """Return both losses of a step whose completions were written by slightly other weights."""
    import torch  # noqa: PLC0415

    other.given = [ours.setting.data.train[number].token_ids.tolist() for number in numbers]
    rows = [number for number in numbers for _ in range(GROUP)]
    with torch.no_grad():
        batch = ours.rolled_out(rows, written())
    other.model.train()
    given = other._generate_and_score_completions([{"prompt": "a"} for _ in rows])
    assert torch.allclose(batch["advantages"], given["advantages"], atol=1e-5)
    for trainer in (ours, other):
        shifted(trainer.model)
        trainer.model.train()
    # Whatever the loop says: what is added up is ours.
    ours.current_gradient_accumulation_steps = 3
    mine = ours.compute_loss(ours.model, batch, num_items_in_batch=ours.term_count(batch))
    return mine.item(), other.compute_loss(other.model, given).item()


@pytest.mark.parametrize("own", LOSSES, ids=lambda own: " ".join(map(str, own.values())))
def test_the_losses_of_grpo_are_those_of_trl(
    own: dict[str, Any], tmp_path: Path, tiny: Path
) -> None:
    from trl import GRPOConfig, GRPOTrainer  # noqa: PLC0415

    from services.trainer_runner.trainer.methods import trainer_of  # noqa: PLC0415

    told = {**REWARDS, **own, "num_generations": GROUP, "num_iterations": 2}
    setting = a_setting(tmp_path, tiny, "grpo", LORA, **told)
    model = a_setting(tmp_path, tiny, "grpo", LORA, **told).model
    ours = trainer_of(setting)
    other = theirs(GRPOTrainer, GRPOConfig, setting.plan, model, num_iterations=2, **own)

    mine, reference = losses(ours, other, [3, 11])

    assert abs(reference) > 1e-3
    assert mine == pytest.approx(reference, abs=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_loss_of_rloo_is_that_of_trl(normalize: bool, tmp_path: Path, tiny: Path) -> None:
    from trl import RLOOConfig, RLOOTrainer  # noqa: PLC0415

    from services.trainer_runner.trainer.methods import trainer_of  # noqa: PLC0415

    own = {"beta": 0.05, "normalize_advantages": normalize}
    told = {**REWARDS, **own, "num_generations": GROUP}
    setting = a_setting(tmp_path, tiny, "rloo", LORA, **told)
    model = a_setting(tmp_path, tiny, "rloo", LORA, **told).model
    # So that the model is not its reference.
    shifted(setting.model)
    ours = trainer_of(setting)
    other = theirs(RLOOTrainer, RLOOConfig, setting.plan, model, **own)
    shifted(other.model)

    mine, reference = losses(ours, other, [3, 11])

    assert abs(reference) > 1e-3
    assert mine == pytest.approx(reference, abs=1e-5)


@pytest.mark.parametrize("adapter", [LORA, FULL], ids=["lora", "full"])
@pytest.mark.parametrize("loss_type", ["sigmoid", "ipo"])
def test_the_loss_of_online_dpo_is_that_of_trl(
    loss_type: str, adapter: dict[str, Any], tmp_path: Path, tiny: Path
) -> None:
    import torch  # noqa: PLC0415
    from datasets import Dataset  # noqa: PLC0415
    from transformers import AutoTokenizer  # noqa: PLC0415
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer  # noqa: PLC0415

    from services.trainer_runner.trainer.methods import trainer_of  # noqa: PLC0415
    from services.trainer_runner.trainer.online.writing import (  # noqa: PLC0415
        left_padded,
        right_padded,
    )

    own = {**REWARDS, "loss_type": loss_type}
    setting = a_setting(tmp_path, tiny, "online_dpo", adapter, **own)
    ours = trainer_of(setting)
    numbers, completions = [3, 11, 5, 8], written((3, 9, 8, 5, 12, 2, 7, 1))
    with torch.no_grad():
        batch = ours.rolled_out(numbers, completions)
    prompts = [setting.data.train[number].token_ids for number in numbers]

    class Given(OnlineDPOTrainer):  # type: ignore[misc]
        def _generate(self, *_: Any) -> Any:
            firsts_then_seconds = [*completions[::2], *completions[1::2]]
            ids, mask = right_padded([one.token_ids for one in firsts_then_seconds], pad_id=0)
            return (*left_padded(prompts * 2, pad_id=0), ids, mask, None)

    other = Given(
        model=a_setting(tmp_path, tiny, "online_dpo", adapter, **own).model,
        ref_model=None if adapter["type"] == "lora" else setting.reference(),
        reward_funcs=lambda completion_ids, **_: _lengths(completion_ids),
        args=OnlineDPOConfig(
            output_dir=str(tmp_path / "theirs"),
            per_device_train_batch_size=4,
            loss_type=loss_type,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            report_to=[],
            max_length=96 + LIMIT,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 8}),
        processing_class=AutoTokenizer.from_pretrained(tiny),
    )
    for trainer in (ours, other):
        shifted(trainer.model)

    reference = other.training_step(other.model, {"prompt": ["a"] * 4}).item()
    mine = ours.compute_loss(ours.model, batch, num_items_in_batch=ours.term_count(batch)).item()

    assert ours.term_count(batch) == 4
    assert mine == pytest.approx(reference, rel=1e-5, abs=1e-5)


def _lengths(completion_ids: Any) -> list[float]:
    """Return lengths without padding, which is token 0."""
    return [min(sum(token != 0 for token in one) / 10, 1) for one in completion_ids]


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_loss_of_distillation_is_the_papers_divergence(
    beta: float, tmp_path: Path, tiny: Path, teacher: Path
) -> None:
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    from services.trainer_runner.trainer.methods import trainer_of  # noqa: PLC0415

    setting = a_setting(tmp_path, tiny, "distill", FULL, teacher_model="x", beta=beta)
    plan = setting.plan.model_copy(update={"teacher_dir": teacher})
    ours = trainer_of(replace(setting, plan=plan))
    numbers, completions = [3, 11], written((5, 9))
    batch = ours.rolled_out(numbers, completions)
    ours.model.train()
    mine = ours.compute_loss(ours.model, batch, num_items_in_batch=ours.term_count(batch)).item()

    both = AutoModelForCausalLM.from_pretrained(teacher, dtype="float32"), setting.reference()
    total = torch.tensor(0.0)
    for number, one in zip(numbers, completions, strict=True):
        prompt = setting.data.train[number].token_ids.tolist()
        ids = torch.tensor([[*prompt, *one.token_ids]])
        with torch.no_grad():
            p, q = (model(ids).logits[0, len(prompt) - 1 : -1].softmax(-1) for model in both)
        total += _divergence(p, q, beta)

    assert mine == pytest.approx(total.item() / 14, abs=1e-5)


def _divergence(p: Any, q: Any, beta: float) -> Any:
    """Return the generalised Jensen-Shannon divergence of teacher and student, added up."""
    if beta in (0.0, 1.0):
        p, q = (p, q) if beta == 0.0 else (q, p)
        return (p * (p / q).log()).sum()
    middle = beta * p + (1 - beta) * q
    return (beta * p * (p / middle).log() + (1 - beta) * q * (q / middle).log()).sum()
