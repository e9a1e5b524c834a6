"""What a run computes with, fixed so that it can be repeated to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch

_LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "tokenizers", "lehr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Device, threads and versions of a run."""

    device: str
    """``cpu``, ``cuda`` or ``mps``."""
    threads: int
    """Threads of one operation on the CPU; sums depend on it."""

    def told(self) -> dict[str, Any]:
        """Return what a checkpoint records."""
        return {
            "trainer": "torch",
            "device": self.device,
            "threads": self.threads,
            "versions": {name: version(name) for name in _LIBRARIES},
        }


def fix_environment(threads: int, *, before: Mapping[str, Any] | None) -> Environment:
    """Set threads and determinism; ``before`` is what the resumed checkpoint was made with."""
    recorded = before.get("threads") if before is not None else None
    threads = recorded if isinstance(recorded, int) else threads
    torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and torch.backends.mps.is_available():
        device = "mps"
    # Elsewhere many kernels have no deterministic form, and training would refuse to run.
    torch.use_deterministic_algorithms(device == "cpu")
    return Environment(device=device, threads=threads)


def differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Say what has changed since a checkpoint was made: losses may differ in their last bits."""
    found = []
    if now["device"] != before.get("device"):
        found.append(f"device: {before.get('device')}, now {now['device']}")
    versions = before.get("versions", {})
    for name, have in now["versions"].items():
        if versions.get(name) != have:
            found.append(f"{name}: {versions.get(name)}, now {have}")
    return found
