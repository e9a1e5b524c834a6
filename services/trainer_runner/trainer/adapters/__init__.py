"""One module an adapter: what of a base model is trained, and how it is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from lehr.training.plan import TrainingPlan
from services.trainer_runner.trainer.adapters import full, lora


class Adapter(Protocol):
    """Builds a model to train, and saves what was trained of it."""

    def build(self, plan: TrainingPlan, resume_dir: Path | None) -> Any:
        """Return the model, with the weights of ``resume_dir`` where one is given.

        Raises:
            InvalidArgument: the base model cannot be read, or the adapter does not fit it.
        """
        ...

    def save(self, model: Any, plan: TrainingPlan, folder: Path) -> None:
        """Write the trained weights so that the standard loaders read them."""
        ...


ADAPTERS: dict[str, Adapter] = {"lora": lora, "full": full}
