"""A checkpoint, its files and states, and what the store knows of the job it belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class CheckpointState(StrEnum):
    """Where a checkpoint is."""

    UPLOADING = "UPLOADING"
    COMMITTED = "COMMITTED"
    DELETING = "DELETING"
    DELETED = "DELETED"


S = CheckpointState

#: Every legal move. Nothing comes back: a key that was given up is never written under again.
MOVES: Mapping[CheckpointState, frozenset[CheckpointState]] = {
    S.UPLOADING: frozenset({S.COMMITTED, S.DELETING}),
    S.COMMITTED: frozenset({S.DELETING}),
    S.DELETING: frozenset({S.DELETED}),
    S.DELETED: frozenset(),
}


class DeleteCause(StrEnum):
    """Why a checkpoint goes away."""

    RETENTION = "retention"
    REQUEST = "request"
    ABANDONED = "abandoned"
    """Its upload was given up, by its runner or by time."""
    SUPERSEDED = "superseded"
    """A later run continued from an earlier step, so its step is computed anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a checkpoint."""

    name: str
    size_bytes: int
    sha256: str
    """Lower-case hex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A saved state of a job, visible from COMMITTED on."""

    checkpoint_id: str
    tenant: str
    project: str
    job_id: str
    epoch: int
    """Fencing number of the lease that saved it."""
    step: int
    state: CheckpointState
    is_final: bool
    is_pinned: bool
    is_resumable: bool
    is_superseded: bool
    """A later run continued from an earlier step, or saved this one again; it is neither Best nor
    resumed from any more."""
    eval_loss: float | None
    """Validation loss where it is finite; the only one that can be Best."""
    eval_loss_text: str
    """Validation loss as the trainer spelled it; empty where the step was not evaluated."""
    size_bytes: int
    manifest_sha256: str | None
    commit_time: datetime | None
    delete_cause: DeleteCause | None
    version: int
    files: tuple[File, ...]
    """By name."""

    @property
    def was_committed(self) -> bool:
        """Whether it was visible once, whatever became of it."""
        return self.commit_time is not None

    @property
    def is_visible(self) -> bool:
        """Whether listings show it."""
        return self.state is S.COMMITTED

    @property
    def age(self) -> tuple[int, int]:
        """Its place in the job's history: the step, whatever any clock says."""
        return self.step, self.epoch

    def key(self, name: str) -> str:
        """Return where a file of it is stored."""
        return f"{self.prefix}{name}"

    @property
    def prefix(self) -> str:
        """What every key of it begins with; no other checkpoint ever has the same."""
        return f"checkpoints/{self.tenant}/{self.job_id}/{self.checkpoint_id}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the store knows of a job."""

    tenant: str
    project: str
    job_id: str
    fence_epoch: int
    """Highest epoch that Open was called with; only it may change anything."""
    opened_epoch: int
    """Epoch whose resume point is decided; below ``fence_epoch`` while Open is still looking."""
    resume_checkpoint_id: str | None
    """What ``opened_epoch`` continues from; None is a fresh start."""
    is_resuming: bool
    """The run may still be reading its resume point, so nobody deletes it."""
    skipped: tuple[str, ...]
    """What Open passed over and why, in words."""
    max_checkpoints: int | None
    """Ordinary checkpoints kept; None until the first upload says."""
    expected_best_epoch: int
    expected_best_step: int
    """Step of the newest Best that the runner announced; -1 before the first."""

    @property
    def resume_source(self) -> str | None:
        """The checkpoint that a starting run is reading now."""
        return self.resume_checkpoint_id if self.is_resuming else None
