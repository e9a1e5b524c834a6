"""What follows from every change of a job's checkpoints: who may change them, Best, retention."""

from datetime import datetime

from lehr.events import outbox
from lehr.events.checkpoint import CheckpointBest, CheckpointCommitted
from lehr.postgres import Connection
from services.checkpoint_store.domain.best import best_of
from services.checkpoint_store.domain.checkpoint import Checkpoint, DeleteCause, Job
from services.checkpoint_store.domain.commands import Owner
from services.checkpoint_store.domain.errors import Fenced, JobNotFound, NotOpened
from services.checkpoint_store.domain.retention import victims
from services.checkpoint_store.storage import checkpoints, jobs

SOURCE = "checkpoint_store"


async def writable_job(conn: Connection, owner: Owner, *, job_id: str, epoch: int) -> Job:
    """Lock a job for the run that holds its newest epoch.

    Raises:
        Fenced: a newer run has taken over.
        NotOpened: the run has not called Open, or Open has not answered yet.
    """
    try:
        job = await jobs.lock(conn, owner, job_id)
    except JobNotFound:
        raise NotOpened(job_id, epoch=epoch) from None
    if epoch < job.fence_epoch:
        raise Fenced(job_id, epoch=epoch, fence_epoch=job.fence_epoch)
    if job.opened_epoch != epoch:
        raise NotOpened(job_id, epoch=epoch)
    return job


async def best_id(conn: Connection, job: Job) -> str | None:
    """Return the id of the Best as it is now."""
    best = best_of(await checkpoints.series(conn, owner_of(job), job.job_id))
    return None if best is None else best.checkpoint_id


async def apply_rules(conn: Connection, job: Job, *, best_before: str | None) -> None:
    """Tell of a new Best and hide what is kept no longer; ``job`` is locked."""
    known = await checkpoints.series(conn, owner_of(job), job.job_id)
    best = best_of(known)
    if best is not None and best.checkpoint_id != best_before:
        event = CheckpointBest(
            tenant=best.tenant,
            checkpoint_id=best.checkpoint_id,
            job_id=best.job_id,
            step=best.step,
            eval_loss=float(best.eval_loss_text),
        )
        version = await checkpoints.next_version(conn, best.checkpoint_id)
        await outbox.add(conn, event, sequence=version, source=SOURCE)
    await checkpoints.begin_delete(conn, victims(known, job), DeleteCause.RETENTION)


async def tell_committed(
    conn: Connection, checkpoint: Checkpoint, *, commit_time: datetime, is_best: bool
) -> None:
    """Say that a checkpoint is visible, or that more is known about a visible one."""
    event = CheckpointCommitted(
        tenant=checkpoint.tenant,
        checkpoint_id=checkpoint.checkpoint_id,
        job_id=checkpoint.job_id,
        step=checkpoint.step,
        size_bytes=checkpoint.size_bytes,
        is_best=is_best,
        is_final=checkpoint.is_final,
        is_resumable=checkpoint.is_resumable,
        eval_loss=float(checkpoint.eval_loss_text) if checkpoint.eval_loss_text else None,
        commit_time=commit_time,
    )
    await outbox.add(conn, event, sequence=checkpoint.version, source=SOURCE)


def owner_of(thing: Job | Checkpoint) -> Owner:
    """Return whose it is."""
    return Owner(tenant=thing.tenant, project=thing.project)
