"""Optimizer, schedule and random state on disk, without a pickle: tensors and strict JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from services.trainer_runner.folders import OPTIMIZER, write_json

_OPTIMIZER_JSON = "optimizer.json"
_RNG, _RNG_JSON = "rng.safetensors", "rng.json"


def save_optimizer(optimizer: torch.optim.Optimizer, names: list[str], folder: Path) -> None:
    """Write the optimizer's state; ``names`` are its parameters' in their order."""
    state = optimizer.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    scalars: dict[str, Any] = {}
    for number, values in state["state"].items():
        for key, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{number}.{key}"] = value.detach().cpu().contiguous()
            else:
                scalars[f"{number}.{key}"] = value
    save_file(tensors, folder / OPTIMIZER)
    groups = {"names": names, "scalars": scalars, "param_groups": state["param_groups"]}
    write_json(folder / _OPTIMIZER_JSON, groups)


def load_optimizer(optimizer: torch.optim.Optimizer, names: list[str], folder: Path) -> None:
    """Restore what ``save_optimizer`` wrote.

    Raises:
        ValueError: it was written for other parameters.
    """
    told = json.loads((folder / _OPTIMIZER_JSON).read_bytes())
    if told["names"] != names:
        raise ValueError("the optimizer state belongs to other parameters")
    state: dict[int, dict[str, Any]] = {}
    stored: dict[str, Any] = {**load_file(folder / OPTIMIZER), **told["scalars"]}
    for name, value in stored.items():
        number, _, key = name.partition(".")
        state.setdefault(int(number), {})[key] = value
    groups = [{**group, "betas": tuple(group["betas"])} for group in told["param_groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomState:
    """The state of every generator that training may draw from."""

    python: tuple[Any, ...]
    numpy: Any
    """What ``numpy.random.get_state`` gives in its old form, a tuple of five."""
    tensors: Mapping[str, torch.Tensor]
    """By device: ``cpu``, ``cuda.<number>``, ``mps``."""

    @classmethod
    def now(cls) -> RandomState:
        """Return the state of this moment."""
        tensors = {"cpu": torch.get_rng_state()}
        for device in range(torch.cuda.device_count()):
            tensors[f"cuda.{device}"] = torch.cuda.get_rng_state(device)
        if torch.backends.mps.is_available():
            tensors["mps"] = torch.mps.get_rng_state()
        return cls(
            python=random.getstate(), numpy=np.random.get_state(legacy=True), tensors=tensors
        )

    def restore(self) -> None:
        """Let all generators go on from here, as far as this machine has the devices."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.tensors["cpu"])
        for device in range(torch.cuda.device_count()):
            if f"cuda.{device}" in self.tensors:
                torch.cuda.set_rng_state(self.tensors[f"cuda.{device}"], device)
        if torch.backends.mps.is_available() and "mps" in self.tensors:
            torch.mps.set_rng_state(self.tensors["mps"])


def save_random(folder: Path) -> None:
    """Write the random state of this moment."""
    state = RandomState.now()
    version, words, gauss = state.python
    kind, keys, position, has_gauss, cached = state.numpy
    told = {
        "python": {"version": version, "words": words, "gauss": gauss},
        "numpy": {
            "kind": kind,
            "keys": np.asarray(keys).tolist(),
            "position": position,
            "has_gauss": has_gauss,
            "cached": cached,
        },
    }
    write_json(folder / _RNG_JSON, told)
    save_file(dict(state.tensors), folder / _RNG)


def load_random(folder: Path) -> None:
    """Restore what ``save_random`` wrote."""
    told: Mapping[str, Any] = json.loads((folder / _RNG_JSON).read_bytes())
    python, numpy = told["python"], told["numpy"]
    keys = np.array(numpy["keys"], dtype=np.uint32)
    RandomState(
        python=(python["version"], tuple(python["words"]), python["gauss"]),
        numpy=(numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["cached"]),
        tensors=load_file(folder / _RNG),
    ).restore()
