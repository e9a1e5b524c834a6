"""What callers ask the store to do."""

from dataclasses import dataclass

from services.checkpoint_store.domain.checkpoint import File


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """On whose behalf; everything else answers as if it did not exist."""

    tenant: str
    project: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJob:
    """Raise the fence of a job and say what to continue from."""

    owner: Owner
    job_id: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginUpload:
    """Register a checkpoint whose files are about to be uploaded."""

    owner: Owner
    job_id: str
    epoch: int
    step: int
    is_final: bool
    is_resumable: bool
    eval_loss: str
    """As text; empty where the step was not evaluated."""
    files: tuple[File, ...]
    max_checkpoints: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndUpload:
    """Commit or abort an upload."""

    owner: Owner
    checkpoint_id: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCheckpoint:
    """Remove a checkpoint."""

    owner: Owner
    checkpoint_id: str
    allow_best_or_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PinCheckpoint:
    """Keep a checkpoint, or let it be pruned."""

    owner: Owner
    checkpoint_id: str
    is_pinned: bool
