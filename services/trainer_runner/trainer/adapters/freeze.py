"""Freezing: some layers of the base model are trained; a whole model is saved."""

from __future__ import annotations

from typing import Any

import torch

from lehr.training.adapters.freeze import FreezeSpec
from services.trainer_runner.trainer.adapters.base import Making, does_not_fit
from services.trainer_runner.trainer.adapters.full import FullAdapter


class FreezeAdapter(FullAdapter):
    """Trains the last layers and named parts, and saves the whole model."""

    def build(self, making: Making) -> Any:
        """Return the model; what is trained is in float32, the rest as the run computes."""
        model = super().build(making)
        spec = making.plan.spec.adapter_as(FreezeSpec)
        names = trained_names(model, spec)
        # By their memory: an embedding and a head may be one tensor with two names.
        parameters = dict(model.named_parameters(remove_duplicate=False))
        trained = {id(one) for name, one in parameters.items() if _is_below(name, names)}
        for parameter in parameters.values():
            parameter.requires_grad_(id(parameter) in trained)
            if id(parameter) not in trained:
                parameter.data = parameter.data.to(making.dtype)
        return model


def trained_names(model: Any, spec: FreezeSpec) -> list[str]:
    """Return the names of the parts of a model that are trained.

    Raises:
        InvalidArgument: the model has no such parts.
    """
    names = [name for name, _ in model.named_modules()]
    found = []
    for wanted in spec.trained_modules:
        matching = [name for name in names if name == wanted or name.endswith(f".{wanted}")]
        if not matching:
            what = f"no part of it is called {wanted}"
            raise does_not_fit(what, field="adapter.trained_modules")
        found += matching
    layers = _layer_names(model)
    if spec.trained_layers > len(layers):
        what = f"{spec.trained_layers} layers are to be trained, and it has {len(layers)}"
        raise does_not_fit(what, field="adapter.trained_layers")
    return found + layers[len(layers) - spec.trained_layers :]


def _layer_names(model: Any) -> list[str]:
    """Return the names of the layers of the language model, in their order."""
    count = model.config.get_text_config().num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count and count:
            return [f"{name}.{number}" for number in range(count)]
    return []


def _is_below(name: str, parts: list[str]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)
