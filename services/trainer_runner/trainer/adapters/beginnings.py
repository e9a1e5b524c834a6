"""LoRA that begins with a part of the weight (PiSSA, OLoRA), which the base model then lacks.

What is saved is the update of the model that everybody has: ``B A - B0 A0``, of twice the rank.
So plain peft on the plain base gives the tuned model, no decomposition is done twice, and both
halves can be parted again to go on.
"""

# R = rank, I = inputs of a layer, O = outputs of a layer

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora import LoraLayer

from services.trainer_runner.trainer.adapters.base import does_not_fit
from services.trainer_runner.trainer.adapters.tuners import NAME

_PREFIX = "base_model.model."


@dataclass(slots=True)
class _Start:
    """What a layer began with, in float32."""

    layer: Any
    rank: int
    down: torch.Tensor
    """A, shape (R, I)."""
    up: torch.Tensor
    """B, shape (O, R)."""

    @property
    def parts(self) -> list[tuple[Any, torch.Tensor]]:
        """Its parameters, each with what it began as."""
        down, up = self.layer.lora_A[NAME].weight, self.layer.lora_B[NAME].weight
        return [(down, self.down), (up, self.up)]


class Beginnings:
    """What the layers of a model began with."""

    def __init__(self, model: Any, *, is_new: bool) -> None:
        """Look at a model whose adapter has just begun; ``is_new`` says it began like that.

        Raises:
            InvalidArgument: a layer has fewer rows or columns than the rank.
        """
        self._config = model.peft_config[NAME]
        self._starts = dict(_starts(model, is_new=is_new))

    def part(self, stored: Mapping[str, torch.Tensor]) -> None:
        """Go on from what ``joined`` returned; base weights are still whole."""
        with torch.no_grad():
            for name, start in self._starts.items():
                a_2RI = stored[f"{_PREFIX}{name}.lora_A.weight"]
                b_O2R = stored[f"{_PREFIX}{name}.lora_B.weight"]
                (a, _), (b, _) = start.parts
                a.data, start.down = (half.contiguous() for half in a_2RI.split(start.rank))
                b_OR, minus_b_OR = b_O2R.split(start.rank, dim=1)
                b.data, start.up = b_OR.contiguous(), (-minus_b_OR).contiguous()
                _take_out(start)

    def joined(self, stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return an adapter with its beginning taken away: an update of the whole base model."""
        made = dict(stored)
        for name, start in self._starts.items():
            for key, begun, dim in (
                (f"{_PREFIX}{name}.lora_A.weight", start.down, 0),
                (f"{_PREFIX}{name}.lora_B.weight", -start.up, 1),
            ):
                made[key] = torch.cat([stored[key], begun.to(stored[key])], dim=dim)
        return made

    def joined_ranks(self) -> dict[str, Any]:
        """Return the fields of the configuration that go with ``joined``: same scale, all ranks."""
        config = self._config
        scale = math.sqrt(2) if config.use_rslora else 2
        return {
            "r": 2 * config.r,
            "lora_alpha": scale * config.lora_alpha,
            "rank_pattern": {name: 2 * rank for name, rank in config.rank_pattern.items()},
            "alpha_pattern": {name: scale * alpha for name, alpha in config.alpha_pattern.items()},
        }

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Let the model be the base model, for methods that compare with it."""
        pairs = [pair for start in self._starts.values() for pair in start.parts]
        kept = [parameter.data for parameter, _ in pairs]
        try:
            for parameter, begun in pairs:
                parameter.data = begun.to(parameter.device)
            yield
        finally:
            for (parameter, _), data in zip(pairs, kept, strict=True):
                parameter.data = data


def _starts(model: Any, *, is_new: bool) -> Iterator[tuple[str, _Start]]:
    for name, layer in model.get_base_model().named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        if NAME not in layer.lora_A:
            raise does_not_fit(f"{name} is no linear layer", field="adapter.target_modules")
        a, b = layer.lora_A[NAME].weight, layer.lora_B[NAME].weight
        rank = layer.r[NAME]
        if is_new and not a.shape[0] == b.shape[1] == rank:
            what = f"{name} has {a.shape[0]} directions, less than r {rank}; lower r"
            raise does_not_fit(what, field="adapter.r")
        yield name, _Start(layer, rank, a.detach().clone(), b.detach().clone())


def _take_out(start: _Start) -> None:
    """Take the beginning out of the base weight, by the very operations that peft uses."""
    layer = start.layer
    weight = layer.get_base_layer().weight
    is_turned = getattr(layer, "fan_in_fan_out", False)
    whole = weight.data.float().T if is_turned else weight.data.float()
    rest = whole - layer.scaling[NAME] * start.up @ start.down
    weight.data = (rest.T if is_turned else rest).to(weight.dtype)
