"""Checkpoint folders: what every trainer writes into one, and what a resumed run reads from one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lehr.errors import InvalidArgument
from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from services.trainer_runner.cadence import Standing

LINEAGE = "lehr.json"
STATE = "trainer_state.json"
SERIES = "series.jsonl"
#: Without it a folder holds weights only, from which nothing can be continued.
OPTIMIZER = "optimizer.safetensors"
#: Facts that a run and the checkpoint it continues must share, and what each is called.
_SAME = {
    "spec_digest": "job spec",
    "model_revision": "base model revision",
    "dataset_revision": "dataset revision",
    "validation_revision": "validation dataset revision",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A checkpoint that a run continues from."""

    folder: Path
    step: int
    standing: Standing
    end: RunEnd | None
    """How the run had ended there by itself; None where it goes on."""
    series: bytes
    """The step and evaluation reports up to ``step``, one a line."""
    trainer: Mapping[str, Any]
    """What the trainer itself had put into the state."""
    environment: Mapping[str, Any]
    """Versions, device and threads that the checkpoint was made with."""


def write_folder(
    finished: Path, fill: Callable[[Path], None], *, passed: Callable[[], None]
) -> Path:
    """Make the folder ``finished`` by ``fill``; it appears whole and on disk, or not at all.

    ``passed`` is called now and then, to show that the work goes on.
    """
    unfinished = finished.with_name(f".tmp-{finished.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    fill(unfinished)
    for path in sorted(unfinished.iterdir()):
        # safetensors writes 0600, and the agent may be another user.
        path.chmod(0o644)
        _sync(path)
        passed()
    _sync(unfinished)
    unfinished.rename(finished)
    _sync(finished.parent)
    return finished


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write strict JSON: a number that is not finite is a mistake here."""
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def lineage_of(plan: TrainingPlan) -> dict[str, Any]:
    """Return what a checkpoint says about where it comes from."""
    return {
        "format": 1,
        "job_id": plan.job_id,
        "run_id": plan.run_id,
        "model_name": plan.model_name,
        "adapter": plan.spec.adapter.type,
        **{name: getattr(plan, name) for name in _SAME},
    }


def read_folder(plan: TrainingPlan, folder: Path) -> Resumed:
    """Read a checkpoint that ``plan`` is to continue.

    Raises:
        InvalidArgument: it belongs to another job, model or data, or holds weights only.
    """
    if not (folder / OPTIMIZER).is_file():
        raise InvalidArgument(
            "the checkpoint holds weights only, so the run cannot continue from it; "
            "resume from a full one, or start a new job from its weights",
            reason="CHECKPOINT_NOT_RESUMABLE",
        )
    try:
        lineage = json.loads((folder / LINEAGE).read_bytes())
        state = json.loads((folder / STATE).read_bytes())
        own = state["stateful_callbacks"]["lehr"]
        _refuse_other(plan, lineage)
        return Resumed(
            folder=folder,
            step=state["global_step"],
            standing=Standing.from_json(own["standing"]),
            end=RunEnd(lineage["end"]) if lineage["end"] is not None else None,
            series=(folder / SERIES).read_bytes(),
            trainer=own["trainer"],
            environment=lineage["environment"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(
            f"the checkpoint cannot be read: {error}; resume from another one",
            reason="CHECKPOINT_UNREADABLE",
        ) from error


def _refuse_other(plan: TrainingPlan, lineage: Mapping[str, Any]) -> None:
    for name, called in _SAME.items():
        have, want = lineage[name], getattr(plan, name)
        if have != want:
            raise InvalidArgument(
                f"the checkpoint was made with another {called} ({have}) than this run has "
                f"({want}); continue it as a new job instead",
                reason="CHECKPOINT_OF_ANOTHER_JOB",
                fact=name,
                have=have,
                want=want,
            )


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
