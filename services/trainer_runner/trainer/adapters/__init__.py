"""What of a base model is trained, and how it is saved; a module where an adapter needs one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from lehr.training.plan import TrainingPlan
from services.trainer_runner.trainer.adapters.adalora import AdaloraAdapter
from services.trainer_runner.trainer.adapters.base import Making
from services.trainer_runner.trainer.adapters.freeze import FreezeAdapter
from services.trainer_runner.trainer.adapters.full import FullAdapter
from services.trainer_runner.trainer.adapters.lora import LoraAdapter
from services.trainer_runner.trainer.adapters.prompts import PromptAdapter
from services.trainer_runner.trainer.adapters.qlora import QloraAdapter
from services.trainer_runner.trainer.adapters.tuners import TunerAdapter


class Adapter(Protocol):
    """Builds a model to train, and saves what was trained of it."""

    def build(self, making: Making) -> Any:
        """Return the model, with the weights of the checkpoint where one is continued.

        Raises:
            InvalidArgument: the base model cannot be read, or the adapter does not fit it.
        """
        ...

    def join(self, trainer: Any, making: Making) -> None:
        """Take part in the loop of a trainer that has the model, before it begins."""
        ...

    def save(self, model: Any, plan: TrainingPlan, folder: Path) -> None:
        """Write the trained weights so that the standard loaders read them."""
        ...


_OWN: dict[str, type[Adapter]] = {
    "full": FullAdapter,
    "freeze": FreezeAdapter,
    "lora": LoraAdapter,
    "qlora": QloraAdapter,
    "adalora": AdaloraAdapter,
    "prompt_tuning": PromptAdapter,
    "prefix_tuning": PromptAdapter,
    "p_tuning": PromptAdapter,
}


def adapter_of(plan: TrainingPlan) -> Adapter:
    """Return the adapter of a plan, for one run; its id is known to the registry."""
    return _OWN.get(plan.spec.adapter.type, TunerAdapter)()
