"""What trainers of our own losses share: transformers' loop, and log-probabilities of answers."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from transformers import Trainer, TrainingArguments
from trl.trainer.utils import disable_dropout_in_model

from services.trainer_runner.trainer import logps
from services.trainer_runner.trainer.loop import Loop, Setting, arguments


class OwnTrainer(Loop, Trainer):  # type: ignore[misc]  # transformers is not typed here
    """Trains without dropout, as log-probabilities that are compared should be no noise."""

    def __init__(self, setting: Setting) -> None:
        self.begin(setting)
        prepare(setting.model)
        if setting.plan.spec.training.gradient_checkpointing and has_adapter(setting.model):
            # Else no gradient would reach the checkpoints of frozen layers.
            setting.model.enable_input_require_grads()
        super().__init__(
            model=setting.model,
            args=TrainingArguments(**arguments(setting)),
            data_collator=lambda rows: rows,
            train_dataset=Dataset.from_dict({"input_ids": [[0]]}),
        )
        self.own_loop()


def prepare(model: Any) -> None:
    """Make a model fit for ``answer_logps``."""
    disable_dropout_in_model(model)
    logps.add_head(model)


def has_adapter(model: Any) -> bool:
    """Whether a model is a base model with an adapter."""
    return hasattr(model, "peft_config")


def reference_of(setting: Setting) -> Any:
    """Return the base model, or None where it is the model with its adapter switched off."""
    return None if has_adapter(setting.model) else setting.reference()
