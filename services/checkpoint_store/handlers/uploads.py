"""Begin, commit and abort an upload."""

import asyncio
import time
from dataclasses import replace
from datetime import datetime, timedelta

from lehr import faults
from lehr.errors import FieldViolation, InvalidArgument
from lehr.ids import derived_id
from lehr.logs import get_logger, metrics
from lehr.objects import ObjectStore
from lehr.postgres import Connection, Database
from services.checkpoint_store.domain import manifest
from services.checkpoint_store.domain.best import best_of, read_loss
from services.checkpoint_store.domain.checkpoint import (
    Checkpoint,
    CheckpointState,
    DeleteCause,
    Job,
)
from services.checkpoint_store.domain.commands import BeginUpload, EndUpload
from services.checkpoint_store.domain.errors import (
    CheckpointDiffers,
    Fenced,
    StateForbids,
    UploadGivenUp,
)
from services.checkpoint_store.domain.retention import replaced_by
from services.checkpoint_store.handlers.rules import (
    apply_rules,
    best_id,
    owner_of,
    tell_committed,
    writable_job,
)
from services.checkpoint_store.handlers.verification import verify_upload
from services.checkpoint_store.storage import checkpoints, jobs

S = CheckpointState


async def begin(cmd: BeginUpload, *, db: Database) -> Checkpoint:
    """Register an upload; the same step of the same epoch is the same checkpoint.

    Asked again, it may add that the step is final or what its loss is, even after the commit.

    Raises:
        InvalidArgument: the files cannot be a checkpoint, or the loss is no number.
        Fenced, NotOpened: the run may not write.
        UploadGivenUp: the upload was aborted before.
        CheckpointDiffers: the step was committed with other bytes.
    """
    wanted = _wanted(cmd)
    async with db.transaction() as conn:
        job = await writable_job(conn, cmd.owner, job_id=cmd.job_id, epoch=cmd.epoch)
        await jobs.keep_newest(conn, job, cmd.max_checkpoints)
        job = replace(job, max_checkpoints=cmd.max_checkpoints)
        if not await checkpoints.add(conn, wanted):
            known = await checkpoints.get(conn, cmd.owner, wanted.checkpoint_id)
            await _begin_again(conn, job, known, wanted)
        begun = await checkpoints.get(conn, cmd.owner, wanted.checkpoint_id)
    await faults.hit("checkpoint_store.begin.after_row")
    return begun


async def abort(cmd: EndUpload, *, db: Database, url_lifetime: timedelta) -> None:
    """Give an upload up; again is the same as once.

    Raises:
        CheckpointNotFound: no such upload.
        StateForbids: it is committed already.
    """
    async with db.transaction() as conn:
        found = await _upload(conn, cmd)
        if found.state is S.COMMITTED:
            raise StateForbids(cmd.checkpoint_id, have=found.state, doing="aborted; delete it")
        await checkpoints.give_up_upload(conn, cmd.checkpoint_id, url_lifetime=url_lifetime)


class Committer:
    """Commits uploads, each to its end even if its caller stops waiting.

    Reading gigabytes may take longer than a deadline; whoever asks again joins the same work.
    """

    def __init__(self, *, db: Database, objects: ObjectStore) -> None:
        self._db = db
        self._objects = objects
        self._running: dict[EndUpload, asyncio.Task[Checkpoint]] = {}

    async def commit(self, cmd: EndUpload) -> Checkpoint:
        """Verify every byte, write the manifest, and make the checkpoint visible; idempotent.

        Raises:
            CheckpointNotFound: no such upload.
            Fenced: a newer run has taken over.
            UploadGivenUp: it was aborted, or took too long.
            FileMissing, ChecksumMismatch: what is stored is not what was announced.
        """
        task = self._running.get(cmd)
        if task is None:
            task = asyncio.create_task(self._commit(cmd))
            self._running[cmd] = task
            task.add_done_callback(lambda done: self._forget(cmd, done))
        return await asyncio.shield(task)

    def _forget(self, cmd: EndUpload, task: asyncio.Task[Checkpoint]) -> None:
        del self._running[cmd]
        if not task.cancelled() and (problem := task.exception()) is not None:
            # Its caller may be gone; a caller who waits gets it too.
            get_logger().warning(
                "commit_refused", checkpoint_id=cmd.checkpoint_id, reason=repr(problem)
            )

    async def _commit(self, cmd: EndUpload) -> Checkpoint:
        began = time.monotonic()
        async with self._db.transaction() as conn:
            found = await _upload(conn, cmd)
            if found.was_committed:
                return found
            # The fence comes first: a replaced run must hear that it is over.
            await writable_job(conn, cmd.owner, job_id=found.job_id, epoch=cmd.epoch)
            if found.state is not S.UPLOADING:
                raise UploadGivenUp(cmd.checkpoint_id)
        await verify_upload(found, self._objects)
        await faults.hit("checkpoint_store.commit.before_manifest")
        content = manifest.body(found)
        await self._objects.put_bytes(found.key(manifest.MANIFEST), content)
        await faults.hit("checkpoint_store.commit.after_manifest")
        async with self._db.transaction() as conn:
            committed = await _make_visible(conn, cmd, found, manifest.digest(content))
        await faults.hit("checkpoint_store.commit.after_row")
        metrics.observe("checkpoint_commit_seconds", time.monotonic() - began)
        return committed


async def _make_visible(
    conn: Connection, cmd: EndUpload, verified: Checkpoint, manifest_sha256: str
) -> Checkpoint:
    # The fence is read under the lock: a run that was replaced meanwhile commits nothing.
    job = await writable_job(conn, cmd.owner, job_id=verified.job_id, epoch=cmd.epoch)
    now = await _upload(conn, cmd)
    if now.was_committed:
        return now
    best_before = await best_id(conn, job)
    if verified.is_final:
        await checkpoints.drop_other_finals(conn, verified)
    version, commit_time = await checkpoints.commit(conn, verified, manifest_sha256)
    committed = replace(
        verified,
        state=S.COMMITTED,
        version=version,
        commit_time=commit_time,
        manifest_sha256=manifest_sha256,
    )
    await jobs.end_resuming(conn, job)
    job = replace(job, is_resuming=False)
    await _replace_twins(conn, job, committed)
    await _tell_and_apply(conn, job, committed, commit_time, best_before=best_before)
    kind = "final" if committed.is_final else "other"
    metrics.add("checkpoints_committed", kind=kind)
    return await checkpoints.get(conn, cmd.owner, cmd.checkpoint_id)


async def _replace_twins(conn: Connection, job: Job, committed: Checkpoint) -> None:
    """Let the newest run alone stand for a step; a person's pin keeps the bytes."""
    known = await checkpoints.series(conn, owner_of(job), job.job_id)
    twins = replaced_by(committed, known)
    await checkpoints.supersede(conn, twins)
    unpinned = [each for each in twins if not each.is_pinned]
    await checkpoints.begin_delete(conn, unpinned, DeleteCause.SUPERSEDED)


async def _tell_and_apply(
    conn: Connection,
    job: Job,
    committed: Checkpoint,
    commit_time: datetime,
    *,
    best_before: str | None,
) -> None:
    best = best_of(await checkpoints.series(conn, owner_of(job), job.job_id))
    is_best = best is not None and best.checkpoint_id == committed.checkpoint_id
    await tell_committed(conn, committed, commit_time=commit_time, is_best=is_best)
    await apply_rules(conn, job, best_before=best_before)


async def _begin_again(conn: Connection, job: Job, known: Checkpoint, wanted: Checkpoint) -> None:
    merged = replace(
        wanted,
        version=known.version + 1,
        state=known.state,
        commit_time=known.commit_time,
        is_final=known.is_final or wanted.is_final,
        eval_loss=wanted.eval_loss if wanted.eval_loss_text else known.eval_loss,
        eval_loss_text=wanted.eval_loss_text or known.eval_loss_text,
    )
    different = manifest.difference(known.files, wanted.files)
    changed = different or (merged.is_final, merged.eval_loss_text) != (
        known.is_final,
        known.eval_loss_text,
    )
    if known.was_committed and different:
        raise CheckpointDiffers(known.checkpoint_id, step=known.step, file=different)
    if known.is_visible and known.commit_time is not None and changed:
        best_before = await best_id(conn, job)
        if merged.is_final:
            await checkpoints.drop_other_finals(conn, merged)
        await checkpoints.complete_facts(conn, merged)
        await _tell_and_apply(conn, job, merged, known.commit_time, best_before=best_before)
    elif known.state is S.UPLOADING and changed:
        await checkpoints.replace_upload(conn, merged)
    elif known.state is S.UPLOADING:
        await checkpoints.renew_upload(conn, known.checkpoint_id)
    elif not known.was_committed:
        raise UploadGivenUp(known.checkpoint_id)


async def _upload(conn: Connection, cmd: EndUpload) -> Checkpoint:
    """Return the checkpoint that a run means.

    Raises:
        CheckpointNotFound: it does not exist.
        Fenced: it is not of the epoch that the run claims to have.
    """
    found = await checkpoints.get(conn, cmd.owner, cmd.checkpoint_id)
    if found.epoch != cmd.epoch:
        raise Fenced(found.job_id, epoch=cmd.epoch, fence_epoch=found.epoch)
    return found


def _wanted(cmd: BeginUpload) -> Checkpoint:
    if cmd.max_checkpoints < 1:
        rule = "must be at least 1"
        raise InvalidArgument(
            f"max_checkpoints {rule}",
            fields=[FieldViolation(field="max_checkpoints", description=rule)],
        )
    manifest.check_files(cmd.files)
    eval_loss, eval_loss_text = read_loss(cmd.eval_loss)
    return Checkpoint(
        checkpoint_id=derived_id("ckpt", cmd.job_id, f"{cmd.epoch}.{cmd.step}"),
        tenant=cmd.owner.tenant,
        project=cmd.owner.project,
        job_id=cmd.job_id,
        epoch=cmd.epoch,
        step=cmd.step,
        state=S.UPLOADING,
        is_final=cmd.is_final,
        is_pinned=False,
        is_resumable=manifest.holds_whole_state(cmd.files, claimed=cmd.is_resumable),
        is_superseded=False,
        eval_loss=eval_loss,
        eval_loss_text=eval_loss_text,
        size_bytes=sum(file.size_bytes for file in cmd.files),
        manifest_sha256=None,
        commit_time=None,
        delete_cause=None,
        version=1,
        files=tuple(sorted(cmd.files, key=lambda file: file.name)),
    )
