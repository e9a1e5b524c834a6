"""Open: raise the fence first, then choose what to resume from, so that no older run interferes."""

from dataclasses import dataclass
from datetime import timedelta

from lehr import faults
from lehr.errors import FailedPrecondition
from lehr.objects import ObjectStore
from lehr.postgres import Connection, Database
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
        candidates = await _candidates(conn, job)
    await faults.hit("checkpoint_store.open.after_fence")
    skipped = job.skipped
    chosen = None
    if job.opened_epoch != cmd.epoch:
        chosen, skipped = await _newest_whole(candidates, objects, hash_bytes_max=hash_bytes_max)
        if chosen is None and candidates:
            raise NothingVerifies(cmd.job_id, skipped)
    async with db.transaction() as conn:
        return await _decide(conn, cmd, chosen, skipped, url_lifetime=url_lifetime)


async def _candidates(conn: Connection, job: Job) -> list[Checkpoint]:
    """Return what may be resumed from, newest step first."""
    known = await checkpoints.series(conn, owner_of(job), job.job_id)
    usable = (
        each for each in known if each.is_visible and each.is_resumable and not each.is_superseded
    )
    return sorted(usable, key=lambda each: each.age, reverse=True)


async def _newest_whole(
    candidates: list[Checkpoint], objects: ObjectStore, *, hash_bytes_max: int
) -> tuple[Checkpoint | None, tuple[str, ...]]:
    skipped: list[str] = []
    for candidate in candidates:
        try:
            await verify_resume_point(candidate, objects, hash_bytes_max=hash_bytes_max)
        except FailedPrecondition as problem:
            skipped.append(f"step {candidate.step}: {_without_advice(problem)}")
        else:
            return candidate, tuple(skipped)
    return None, tuple(skipped)


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
