"""Take checkpoints away: on request, or because nobody will finish or keep them."""

from datetime import timedelta

from lehr import faults
from lehr.events import outbox
from lehr.events.checkpoint import CheckpointDeleted
from lehr.logs import get_logger
from lehr.objects import ObjectStore
from lehr.postgres import Connection, Database
from services.checkpoint_store.domain.best import best_of
from services.checkpoint_store.domain.checkpoint import (
    Checkpoint,
    CheckpointState,
    DeleteCause,
    Job,
)
from services.checkpoint_store.domain.commands import DeleteCheckpoint, Owner, PinCheckpoint
from services.checkpoint_store.domain.errors import (
    CheckpointInUse,
    CheckpointPinned,
    CheckpointProtected,
    StateForbids,
)
from services.checkpoint_store.domain.manifest import MANIFEST
from services.checkpoint_store.handlers.rules import SOURCE, apply_rules, best_id
from services.checkpoint_store.storage import checkpoints, jobs

S = CheckpointState

_AT_ONCE = 20


async def delete_checkpoint(cmd: DeleteCheckpoint, *, db: Database) -> None:
    """Hide a checkpoint at once; its bytes go when nobody can be reading them. Twice is once.

    After the Best is deleted its loss stays the bar: the next Best must be strictly lower.

    Raises:
        CheckpointNotFound: no such checkpoint.
        StateForbids: it is still being uploaded.
        CheckpointPinned, CheckpointInUse: someone keeps it or is resuming from it.
        CheckpointProtected: it is Best or final, and the command does not allow that.
    """
    async with db.transaction() as conn:
        job, found = await _locked(conn, cmd.owner, cmd.checkpoint_id)
        if found.state in (S.DELETING, S.DELETED):
            return
        if found.state is S.UPLOADING:
            raise StateForbids(cmd.checkpoint_id, have=found.state, doing="deleted")
        await _check_deletable(conn, job, found, allow=cmd.allow_best_or_final)
        await checkpoints.begin_delete(conn, [found], DeleteCause.REQUEST)


async def pin_checkpoint(cmd: PinCheckpoint, *, db: Database) -> tuple[Checkpoint, str | None]:
    """Keep a checkpoint, or let retention judge it again; return it and the id of the Best.

    Raises:
        CheckpointNotFound: no such checkpoint.
        StateForbids: it is not visible.
    """
    async with db.transaction() as conn:
        job, found = await _locked(conn, cmd.owner, cmd.checkpoint_id)
        if not found.is_visible:
            raise StateForbids(cmd.checkpoint_id, have=found.state, doing="pinned")
        best = await best_id(conn, job)
        if found.is_pinned != cmd.is_pinned:
            await checkpoints.pin(conn, found, is_pinned=cmd.is_pinned)
            await apply_rules(conn, job, best_before=best)
        return await checkpoints.get(conn, cmd.owner, cmd.checkpoint_id), best


async def collect(
    *, db: Database, objects: ObjectStore, abandon_after: timedelta, url_lifetime: timedelta
) -> None:
    """Give up old uploads, then remove the objects of everything hidden whose time has come."""
    async with db.transaction() as conn:
        given_up = await checkpoints.give_up_old_uploads(
            conn, age=abandon_after, url_lifetime=url_lifetime
        )
    if given_up:
        get_logger().info("uploads_given_up", checkpoint_ids=given_up)
    async with db.connection() as conn:
        doomed = await checkpoints.removable(conn, _AT_ONCE)
    for checkpoint in doomed:
        await _remove(checkpoint, db=db, objects=objects)


async def _remove(checkpoint: Checkpoint, *, db: Database, objects: ObjectStore) -> None:
    """Delete the manifest first: what is left of a half-deleted checkpoint proves nothing."""
    await objects.delete([checkpoint.key(MANIFEST)])
    await faults.hit("checkpoint_store.remove.after_manifest")
    # By listing, so that files of an upload's earlier attempt go too.
    rest = await objects.list(checkpoint.prefix)
    await objects.delete([each.key for each in rest])
    await faults.hit("checkpoint_store.remove.after_objects")
    async with db.transaction() as conn:
        version = await checkpoints.end_delete(conn, checkpoint.checkpoint_id)
        if version is None:
            return
        event = CheckpointDeleted(
            tenant=checkpoint.tenant,
            checkpoint_id=checkpoint.checkpoint_id,
            job_id=checkpoint.job_id,
            step=checkpoint.step,
            size_bytes=checkpoint.size_bytes,
            cause=str(checkpoint.delete_cause),
        )
        await outbox.add(conn, event, sequence=version, source=SOURCE)


async def _locked(conn: Connection, owner: Owner, checkpoint_id: str) -> tuple[Job, Checkpoint]:
    """Lock the job of a checkpoint, then read the checkpoint as it is under the lock."""
    found = await checkpoints.get(conn, owner, checkpoint_id)
    job = await jobs.lock(conn, owner, found.job_id)
    return job, await checkpoints.get(conn, owner, checkpoint_id)


async def _check_deletable(
    conn: Connection, job: Job, checkpoint: Checkpoint, *, allow: bool
) -> None:
    checkpoint_id = checkpoint.checkpoint_id
    if checkpoint.is_pinned:
        raise CheckpointPinned(checkpoint_id)
    if checkpoint_id == job.resume_source:
        raise CheckpointInUse(checkpoint_id, job.job_id)
    if allow:
        return
    owner = Owner(tenant=job.tenant, project=job.project)
    best = best_of(await checkpoints.series(conn, owner, job.job_id))
    if best is not None and best.checkpoint_id == checkpoint_id:
        raise CheckpointProtected(checkpoint_id, "Best")
    if checkpoint.is_final:
        raise CheckpointProtected(checkpoint_id, "final")
