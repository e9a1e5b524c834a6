"""Choose what a job resumes from. Open raises the fence first, so that no older run interferes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from lehr import faults
from lehr.errors import FailedPrecondition
from lehr.objects import ObjectStore
from lehr.postgres import Connection, Database
from services.checkpoint_store.domain.best import best_of
from services.checkpoint_store.domain.checkpoint import Checkpoint, DeleteCause, Job
from services.checkpoint_store.domain.commands import OpenJob, Owner
from services.checkpoint_store.domain.errors import Fenced, NothingVerifies, StaleCheckpoint
from services.checkpoint_store.domain.retention import superseded_by
from services.checkpoint_store.handlers.rules import apply_rules, best_id, owner_of
from services.checkpoint_store.handlers.verification import verify_resume_point
from services.checkpoint_store.storage import checkpoints, jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a run begins with."""

    resume_from: Checkpoint | None
    """None is a fresh start."""
    best_id: str | None
    skipped: tuple[str, ...]
    """What was passed over and why, in words."""


async def open_job(
    cmd: OpenJob,
    *,
    db: Database,
    objects: ObjectStore,
    hash_bytes_max: int,
    url_lifetime: timedelta,
) -> Opening:
    """Raise the fence to the command's epoch and decide once what that epoch resumes from.

    Raises:
        Fenced: a newer run has taken over.
        NothingVerifies: there are checkpoints to resume from, and none can be read whole. They
            stay, so that storage can be repaired; nothing is trained anew behind the user's back.
        ObjectStoreUnavailable: it is not known whether they can be read.
    """
    async with db.transaction() as conn:
        job = await jobs.raise_fence(conn, cmd.owner, cmd.job_id, cmd.epoch)
        if cmd.epoch < job.fence_epoch:
            raise Fenced(cmd.job_id, epoch=cmd.epoch, fence_epoch=job.fence_epoch)
        known = await checkpoints.series(conn, cmd.owner, cmd.job_id)
    await faults.hit("checkpoint_store.open.after_fence")
    skipped = job.skipped
    chosen = None
    if job.opened_epoch != cmd.epoch:
        chosen, skipped = await _newest_whole(
            cmd.job_id, known, objects, hash_bytes_max=hash_bytes_max
        )
    async with db.transaction() as conn:
        return await _decide(conn, cmd, chosen, skipped, url_lifetime=url_lifetime)


async def find_resumable(
    owner: Owner, job_id: str, *, db: Database, objects: ObjectStore, hash_bytes_max: int
) -> Opening:
    """Return what a run would begin with if it were opened now; nothing is changed.

    Raises:
        NothingVerifies, ObjectStoreUnavailable: as for ``open_job``.
    """
    async with db.connection() as conn:
        known = await checkpoints.series(conn, owner, job_id)
    chosen, skipped = await _newest_whole(job_id, known, objects, hash_bytes_max=hash_bytes_max)
    best = best_of(known)
    return Opening(
        resume_from=chosen, best_id=best.checkpoint_id if best else None, skipped=skipped
    )


async def _newest_whole(
    job_id: str, known: Sequence[Checkpoint], objects: ObjectStore, *, hash_bytes_max: int
) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """Return the newest that verifies, and what was passed over; None if none is resumable.

    Raises:
        NothingVerifies: some are resumable, and none of them verifies.
    """
    usable = [
        each for each in known if each.is_visible and each.is_resumable and not each.is_superseded
    ]
    skipped: dict[int, str] = {}
    for candidate in sorted(usable, key=lambda each: each.age, reverse=True):
        try:
            await verify_resume_point(candidate, objects, hash_bytes_max=hash_bytes_max)
        except FailedPrecondition as problem:
            skipped[candidate.step] = _without_advice(problem)
        else:
            return candidate, tuple(f"step {step}: {why}" for step, why in skipped.items())
    if usable:
        raise NothingVerifies(job_id, skipped)
    return None, ()


async def _decide(
    conn: Connection,
    cmd: OpenJob,
    chosen: Checkpoint | None,
    skipped: tuple[str, ...],
    *,
    url_lifetime: timedelta,
) -> Opening:
    """Write the decision down, or read the one that was made for this epoch before."""
    job = await jobs.lock(conn, cmd.owner, cmd.job_id)
    if cmd.epoch < job.fence_epoch:
        raise Fenced(cmd.job_id, epoch=cmd.epoch, fence_epoch=job.fence_epoch)
    if job.opened_epoch != cmd.epoch:
        if chosen is not None:
            now = await checkpoints.get(conn, cmd.owner, chosen.checkpoint_id)
            if not now.is_visible:
                # Deleted while its bytes were being read: look again.
                raise StaleCheckpoint(chosen.checkpoint_id)
        best_before = await best_id(conn, job)
        await _leave_behind(conn, job, resume_step=chosen.step if chosen else 0)
        resume_id = chosen.checkpoint_id if chosen else None
        await jobs.decide_resume(conn, job, resume_id, skipped)
        job = await jobs.lock(conn, cmd.owner, cmd.job_id)
        await apply_rules(conn, job, best_before=best_before)
    return await _opening(conn, cmd.owner, job, url_lifetime=url_lifetime)


async def _leave_behind(conn: Connection, job: Job, *, resume_step: int) -> None:
    """Take what lies past the resume point out of the series; a person's pin keeps the bytes."""
    known = await checkpoints.series(conn, owner_of(job), job.job_id)
    past = superseded_by(known, resume_step=resume_step)
    await checkpoints.supersede_past(conn, job, resume_step)
    unpinned = [each for each in past if not each.is_pinned]
    await checkpoints.begin_delete(conn, unpinned, DeleteCause.SUPERSEDED)


async def _opening(conn: Connection, owner: Owner, job: Job, *, url_lifetime: timedelta) -> Opening:
    resume_from = None
    if job.resume_checkpoint_id is not None:
        resume_from = await checkpoints.get(conn, owner, job.resume_checkpoint_id)
        await checkpoints.hand_out(conn, owner, job.resume_checkpoint_id, url_lifetime=url_lifetime)
    return Opening(resume_from=resume_from, best_id=await best_id(conn, job), skipped=job.skipped)


def _without_advice(problem: FailedPrecondition) -> str:
    # The advice is for whoever uploads, who is gone.
    return problem.message.partition(";")[0]
