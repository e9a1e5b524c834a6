"""Checkpoints and jobs with good defaults."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from services.checkpoint_store.domain.best import read_loss
from services.checkpoint_store.domain.checkpoint import Checkpoint, CheckpointState, File, Job

_BASE = Checkpoint(
    checkpoint_id="ckpt_x",
    tenant="acme",
    project="default",
    job_id="job_x",
    epoch=1,
    step=10,
    state=CheckpointState.COMMITTED,
    is_final=False,
    is_pinned=False,
    is_resumable=True,
    is_superseded=False,
    eval_loss=None,
    eval_loss_text="",
    size_bytes=1,
    manifest_sha256="0" * 64,
    commit_time=datetime(2026, 1, 1, tzinfo=UTC),
    delete_cause=None,
    version=2,
    files=(File(name="a.json", size_bytes=1, sha256="0" * 64),),
)

_JOB = Job(
    tenant="acme",
    project="default",
    job_id="job_x",
    fence_epoch=1,
    opened_epoch=1,
    resume_checkpoint_id=None,
    is_resuming=False,
    skipped=(),
    max_checkpoints=2,
    expected_best_epoch=0,
    expected_best_step=-1,
)


def a_checkpoint(step: int = 10, *, loss: str = "", **changes: Any) -> Checkpoint:
    """Return a committed checkpoint; its id tells epoch and step."""
    eval_loss, eval_loss_text = read_loss(loss)
    made = replace(_BASE, step=step, eval_loss=eval_loss, eval_loss_text=eval_loss_text, **changes)
    return replace(made, checkpoint_id=f"ckpt_{made.epoch}_{made.step}")


def a_job(**changes: Any) -> Job:
    """Return a job that keeps two ordinary checkpoints."""
    return replace(_JOB, **changes)
