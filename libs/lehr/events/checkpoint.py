"""Facts about checkpoints, said by the checkpoint store."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from lehr.events.base import Event, Number


class CheckpointEvent(Event):
    """What every fact about a checkpoint carries."""

    NOUN: ClassVar[str] = "checkpoint"

    checkpoint_id: str
    job_id: str
    step: int

    @property
    def subject_id(self) -> str:
        """The checkpoint."""
        return self.checkpoint_id


class CheckpointCommitted(CheckpointEvent):
    """The checkpoint is complete, verified and visible."""

    PAST: ClassVar[str] = "committed"

    size_bytes: int
    is_best: bool
    is_final: bool
    is_resumable: bool
    eval_loss: Number | None = None
    commit_time: datetime


class CheckpointBest(CheckpointEvent):
    """The checkpoint became the job's Best."""

    PAST: ClassVar[str] = "best"

    eval_loss: float


class CheckpointDeleted(CheckpointEvent):
    """The checkpoint is gone: pruned or deleted."""

    PAST: ClassVar[str] = "deleted"

    size_bytes: int
    cause: str
    """retention, request, abandoned or superseded (a later run continued from an earlier step)."""
