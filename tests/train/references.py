"""The same tokenised rows for our trainers and for those that they are measured against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lehr.samples.prepare import PreparedData, prepare
from lehr.samples.selection import Sample
from lehr.samples.tokens import SampleTokenizer
from lehr.training.adapters.lora import LoraSpec
from lehr.training.plan import TrainingPlan
from tests.support.canonical_rows import a_row, table_of, write_canonical
from tests.support.trainers import a_plan
from tests.train.method_cases import Rows

ROWS = 24
TRAINING = {
    "max_steps": 3,
    "learning_rate": 0.003,
    "per_device_train_batch_size": 4,
    "lr_scheduler_type": "linear",
}
LORA = {"type": "lora", "lora_dropout": 0.1}
FULL = {"type": "full"}


def plan_of(folder: Path, tiny: Path, row: Rows, **spec: Any) -> TrainingPlan:
    """Return a plan of three steps without validation."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = write_canonical(folder / "rows.jsonl.zst", map(row, range(ROWS)))
    told = {
        **spec,
        "data": {"max_length": 96, "validation_split": 0, **spec.get("data", {})},
        "training": {**TRAINING, **spec.get("training", {})},
    }
    return a_plan(folder, told, model_dir=tiny, dataset_file=rows)


def data_of(plan: TrainingPlan, row: Rows) -> PreparedData:
    """Return the rows of a plan as its trainer prepares them."""
    tokenizer = SampleTokenizer.load(plan.model_dir)
    table = table_of(map(a_row, map(row, range(ROWS))), tokenizer)
    return prepare(table, data=plan.spec.data, context=tokenizer.context)


def setting_of(plan: TrainingPlan, data: PreparedData) -> Any:
    """Return what a method's trainer is made of, with a new model."""
    from services.trainer_runner.trainer.loop import Setting  # noqa: PLC0415 - takes seconds

    model = model_of(plan)
    return Setting(
        plan=plan,
        model=model,
        data=data,
        row_count=len(data.train),
        total_steps=plan.spec.training.max_steps,
        use_cpu=True,
        pad_id=0,
        reference=lambda: base_of(plan),
    )


def base_of(plan: TrainingPlan) -> Any:
    """Return the base model."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - takes seconds

    return AutoModelForCausalLM.from_pretrained(plan.model_dir, dtype="float32")


def model_of(plan: TrainingPlan) -> Any:
    """Return the model that a plan's trainer begins with."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 - takes seconds
    from transformers import set_seed  # noqa: PLC0415

    set_seed(plan.spec.training.seed)
    base = base_of(plan)
    if plan.spec.adapter.type == "full":
        return base
    spec = plan.spec.adapter_as(LoraSpec)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.r,
        lora_alpha=spec.lora_alpha,
        lora_dropout=spec.lora_dropout,
        target_modules="all-linear",
    )
    return get_peft_model(base, config)


def library_arguments(plan: TrainingPlan, folder: Path) -> dict[str, Any]:
    """Return arguments with which a trainer of trl takes the same steps."""
    training = plan.spec.training
    return {
        "output_dir": str(folder / "theirs"),
        "per_device_train_batch_size": training.per_device_train_batch_size,
        "max_steps": training.max_steps,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": training.lr_scheduler_type,
        "seed": training.seed,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "max_length": None,
    }


def losses_of(trainer_type: Any, **more: Any) -> list[float]:
    """Train with a trainer of trl on rows that are ready, and return the loss of each pass."""
    losses: list[float] = []

    class Recorded(trainer_type):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return dataset

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            losses.append(loss.item())
            return loss

    Recorded(**more).train()
    return losses


def answer_ids(answer: Sample) -> list[int]:
    """Return the tokens that are trained; a template's end of line behind them is not."""
    count = answer.trained_count
    assert answer.trained[:count].all()
    found: list[int] = answer.token_ids[:count].tolist()
    return found
