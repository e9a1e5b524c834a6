"""Direct preference optimisation against trl's own trainer on the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from lehr.errors import InvalidArgument
from lehr.training.methods.dpo import DpoHyperparameters, DpoLoss
from lehr.training.plan import TrainingPlan
from tests.support.toy_model import write_toy_model
from tests.support.trainers import Told
from tests.train.method_cases import preference_row
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

SMOOTHED = {"robust": 0.1, "exo_pair": 1e-3, "aot": 0.1}


def uneven_row(number: int) -> dict[str, Any]:
    """Return a pair whose good answers differ in length."""
    row = preference_row(number)
    told = f"It is number {number % 5}" + ", I am quite sure of it" * (number % 3) + "."
    return {**row, "chosen": [{"role": "assistant", "content": told}]}


OPTIONS: dict[str, dict[str, Any]] = {
    **{
        loss: {"loss_type": [loss], "label_smoothing": SMOOTHED.get(loss, 0.0)}
        for loss in get_args(DpoLoss)
    },
    # By the usual beta its losses are about 50, of which float32 knows no fifth decimal.
    "sppo_hard": {"loss_type": ["sppo_hard"], "beta": 0.5},
    "rpo": {"loss_type": ["sigmoid", "sft"]},
    "mpo": {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]},
    "forward kl": {"f_divergence_type": "forward_kl"},
    "js divergence": {"f_divergence_type": "js_divergence", "loss_type": ["hinge"]},
    "alpha divergence": {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.3},
    "ld": {"ld_alpha": 0.3},
    "wpo": {"use_weighting": True, "loss_type": ["sigmoid", "apo_zero"]},
    "tau": {"loss_type": ["discopop"], "discopop_tau": 0.2},
}


def theirs(plan: TrainingPlan, folder: Path) -> list[float]:
    from datasets import Dataset  # noqa: PLC0415 - takes seconds
    from transformers import AutoTokenizer  # noqa: PLC0415
    from trl import DPOConfig, DPOTrainer  # noqa: PLC0415

    from services.trainer_runner.trainer.data.batches import epoch_order  # noqa: PLC0415

    train = data_of(plan, uneven_row).train
    rows = []
    for at in epoch_order(len(train), seed=plan.spec.training.seed, epoch=0):
        prompt, chosen, rejected = train.segments(at)
        rows.append(
            {
                "prompt_ids": prompt.token_ids.tolist(),
                "chosen_ids": answer_ids(chosen),
                "rejected_ids": answer_ids(rejected),
            }
        )
    own = plan.spec.hyperparameters_as(DpoHyperparameters).model_dump(exclude={"type"})
    told = {name: list(one) if isinstance(one, tuple) else one for name, one in own.items()}
    return losses_of(
        DPOTrainer,
        model=model_of(plan),
        args=DPOConfig(
            **library_arguments(plan, folder), train_sampling_strategy="sequential", **told
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(plan.model_dir),
    )


@pytest.mark.parametrize("adapter", [LORA, FULL], ids=["lora", "full"])
@pytest.mark.parametrize("name", OPTIONS)
def test_each_step_has_the_loss_of_trl(
    name: str, adapter: dict[str, Any], train: Callable[..., Told], tmp_path: Path, tiny: Path
) -> None:
    plan = plan_of(
        tmp_path,
        tiny,
        uneven_row,
        method="dpo",
        adapter=adapter,
        hyperparameters=OPTIONS[name],
        # Steps so large that a loss explodes would tell rounding, not formulas, apart.
        training={"learning_rate": 0.0001},
    )

    ours = list(train(plan).losses.values())

    assert len(ours) == 3
    assert ours == pytest.approx(theirs(plan, tmp_path), abs=1e-5)


@pytest.mark.parametrize(
    ("method", "own"), [("dpo", {"loss_type": ["sigmoid", "sft"]}), ("orpo", {}), ("cpo", {})]
)
def test_cross_entropy_of_good_answers_is_a_mean_over_the_tokens_of_a_step(
    method: str, own: dict[str, Any], train: Callable[..., Told], tmp_path: Path, tiny: Path
) -> None:
    def losses(rows: int, passes: int) -> list[float]:
        shape = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": passes}
        plan = plan_of(
            tmp_path / f"{rows}",
            tiny,
            uneven_row,
            method=method,
            hyperparameters=own,
            training=shape,
            data={"validation_split": 0.2},
        )
        told = train(plan)
        return [*told.losses.values(), *told.eval_losses.values()]

    assert losses(8, 1) == pytest.approx(losses(1, 8), abs=1e-5)


@pytest.mark.parametrize("begin", ["pissa", "olora"])
@pytest.mark.parametrize("method", ["dpo", "kto", "bco"])
def test_the_reference_is_the_base_model_even_if_an_adapter_begins_with_a_part_of_it(
    method: str, begin: str, train: Callable[..., Told], tmp_path: Path, tiny: Path
) -> None:
    adapter = {"type": "lora", "init_lora_weights": begin}
    training = {"max_steps": 1}
    plan = plan_of(tmp_path, tiny, uneven_row, method=method, adapter=adapter, training=training)

    [step] = train(plan).steps

    assert step.values["rewards/chosen"] == pytest.approx(0.0, abs=1e-4)
    assert step.values["rewards/rejected"] == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("adapter", ["prompt_tuning", "prefix_tuning", "p_tuning"])
@pytest.mark.parametrize("method", ["dpo", "kto", "orpo", "bco"])
def test_positions_of_a_learnt_prompt_are_no_answer(
    method: str, adapter: str, train: Callable[..., Told], tmp_path: Path, tiny: Path
) -> None:
    plan = plan_of(
        tmp_path,
        tiny,
        uneven_row,
        method=method,
        adapter={"type": adapter, "num_virtual_tokens": 5},
        training={"learning_rate": 0.05, "max_steps": 6},
    )

    told = list(train(plan).losses.values())

    assert told[-1] < told[0]


@pytest.mark.parametrize("method", ["dpo", "kto", "orpo", "bco"])
def test_an_adapter_on_the_vocabularys_layer_is_refused(
    method: str, train: Callable[..., Told], tmp_path: Path
) -> None:
    toy = write_toy_model(tmp_path / "toy", tie_word_embeddings=False)
    adapter = {"type": "lora", "target_modules": ["q_proj", "lm_head"]}
    data = {"max_length": 256}
    plan = plan_of(tmp_path, toy, uneven_row, method=method, adapter=adapter, data=data)

    with pytest.raises(InvalidArgument, match="leave lm_head out"):
        train(plan)
