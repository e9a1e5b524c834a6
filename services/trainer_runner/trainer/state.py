"""Optimizer, schedule and random state on disk, without a pickle: tensors and strict JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
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


def save_random(folder: Path) -> None:
    """Write the state of every generator that training may draw from."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
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
    tensors = {"cpu": torch.get_rng_state()}
    for device in range(torch.cuda.device_count()):
        tensors[f"cuda.{device}"] = torch.cuda.get_rng_state(device)
    if torch.backends.mps.is_available():
        tensors["mps"] = torch.mps.get_rng_state()
    save_file(tensors, folder / _RNG)


def load_random(folder: Path) -> None:
    """Restore what ``save_random`` wrote, as far as this machine has the devices."""
    told: Mapping[str, Any] = json.loads((folder / _RNG_JSON).read_bytes())
    python, numpy = told["python"], told["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    keys = np.array(numpy["keys"], dtype=np.uint32)
    np.random.set_state(
        (numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["cached"])
    )
    tensors = load_file(folder / _RNG)
    torch.set_rng_state(tensors["cpu"])
    for device in range(torch.cuda.device_count()):
        if f"cuda.{device}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda.{device}"], device)
    if torch.backends.mps.is_available() and "mps" in tensors:
        torch.mps.set_rng_state(tensors["mps"])
