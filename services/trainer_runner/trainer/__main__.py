"""Start a trainer: fix what its libraries read from the environment, then train."""

from __future__ import annotations

import os
import sys
import warnings

from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from services.trainer_runner.launch import launch
from services.trainer_runner.pipes import Reporter, StopFlag

#: No network, no telemetry, no code from elsewhere; read by the libraries when they are imported.
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # Deterministic matrix products on CUDA need a fixed workspace.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
THREADS = "LEHR_TORCH_THREADS"
"""Threads of one operation on the CPU; all of the process's cores by default."""


def _train(plan: TrainingPlan, report: Reporter, stop: StopFlag) -> RunEnd:
    # Imported here: it takes seconds, and an unreadable plan should not.
    from services.trainer_runner.trainer.train import train  # noqa: PLC0415

    return train(plan, report, stop, threads=int(os.environ.get(THREADS) or _cores()))


def _cores() -> int:
    """Return the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


if __name__ == "__main__":
    os.environ.update(_OFFLINE)
    # Waiting threads that spin take the processor from the one that they wait for: on a machine
    # with other work, steps took ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Standard error is the user's log, where the libraries' plans for later versions are noise.
    warnings.simplefilter("ignore", FutureWarning)
    raise SystemExit(launch(_train, sys.argv[1:]))
