"""One module a method of the same name; its ``trainer`` makes what ``loop`` runs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from services.trainer_runner.trainer.loop import Setting


def trainer_of(setting: Setting) -> Any:
    """Return the trainer of the plan's method, which is known to the registry.

    Its module alone is imported: each brings seconds of the libraries' imports with it.
    """
    return import_module(f"{__name__}.{setting.plan.spec.method}").trainer(setting)
