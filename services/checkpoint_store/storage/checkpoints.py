"""Rows of ``checkpoints`` to values and back; writers hold the lock of the job."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import asyncpg

from lehr.postgres import Connection
from services.checkpoint_store.domain.checkpoint import (
    Checkpoint,
    CheckpointState,
    DeleteCause,
    File,
    Job,
)
from services.checkpoint_store.domain.commands import Owner
from services.checkpoint_store.domain.errors import CheckpointNotFound, StaleCheckpoint
from services.checkpoint_store.storage.jobs import SQL


async def get(conn: Connection, owner: Owner, checkpoint_id: str) -> Checkpoint:
    """Return a checkpoint in whatever state.

    Raises:
        CheckpointNotFound: no such checkpoint, or another owner's.
    """
    row = await conn.fetchrow(SQL["whole_checkpoint"], owner.tenant, owner.project, checkpoint_id)
    if row is None:
        raise CheckpointNotFound(checkpoint_id)
    return _checkpoint(row)


async def series(conn: Connection, owner: Owner, job_id: str) -> tuple[Checkpoint, ...]:
    """Return every visible checkpoint by step, and the one that is the bar of the Best."""
    rows = await conn.fetch(SQL["series_of_job"], owner.tenant, owner.project, job_id)
    return tuple(map(_checkpoint, rows))


async def removable(conn: Connection, limit: int) -> tuple[Checkpoint, ...]:
    """Return hidden checkpoints whose objects may go now."""
    return tuple(map(_checkpoint, await conn.fetch(SQL["removable"], limit)))


async def add(conn: Connection, wanted: Checkpoint) -> bool:
    """Register an upload with its files; False if its id is registered already."""
    added = await conn.fetchval(
        SQL["add_checkpoint"],
        wanted.checkpoint_id,
        wanted.tenant,
        wanted.project,
        wanted.job_id,
        wanted.epoch,
        wanted.step,
        wanted.is_final,
        wanted.is_resumable,
        wanted.eval_loss,
        wanted.eval_loss_text,
        wanted.size_bytes,
    )
    if added is None:
        return False
    await _add_files(conn, wanted)
    return True


async def renew_upload(conn: Connection, checkpoint_id: str) -> None:
    """Note that somebody is still uploading."""
    await conn.execute(SQL["renew_upload"], checkpoint_id)


async def replace_upload(conn: Connection, wanted: Checkpoint) -> None:
    """Store other files and facts for an upload; ``wanted`` is the next version of it."""
    done = await conn.execute(
        SQL["replace_upload"],
        wanted.checkpoint_id,
        wanted.version,
        wanted.is_final,
        wanted.is_resumable,
        wanted.eval_loss,
        wanted.eval_loss_text,
        wanted.size_bytes,
    )
    _check_changed(done, wanted.checkpoint_id)
    await conn.execute(SQL["drop_files"], wanted.checkpoint_id)
    await _add_files(conn, wanted)


async def commit(
    conn: Connection, verified: Checkpoint, manifest_sha256: str
) -> tuple[int, datetime]:
    """Make an upload visible; return its version and the time.

    Raises:
        StaleCheckpoint: it is not any more what was verified.
    """
    version = verified.version + 1
    commit_time = await conn.fetchval(
        SQL["commit_checkpoint"], verified.checkpoint_id, version, manifest_sha256
    )
    if commit_time is None:
        raise StaleCheckpoint(verified.checkpoint_id)
    return version, commit_time


async def complete_facts(conn: Connection, wanted: Checkpoint) -> None:
    """Store what became known about a committed checkpoint; ``wanted`` is its next version."""
    done = await conn.execute(
        SQL["complete_facts"],
        wanted.checkpoint_id,
        wanted.version,
        wanted.is_final,
        wanted.eval_loss,
        wanted.eval_loss_text,
    )
    _check_changed(done, wanted.checkpoint_id)


async def drop_other_finals(conn: Connection, final: Checkpoint) -> None:
    """Make ``final`` the only final checkpoint of its job."""
    await conn.execute(SQL["drop_final"], final.tenant, final.job_id, final.checkpoint_id)


async def next_version(conn: Connection, checkpoint_id: str) -> int:
    """Count a change and return the new version."""
    version: int = await conn.fetchval(SQL["next_version"], checkpoint_id)
    return version


async def pin(conn: Connection, checkpoint: Checkpoint, *, is_pinned: bool) -> None:
    """Keep a visible checkpoint, or not."""
    done = await conn.execute(
        SQL["pin_checkpoint"], checkpoint.checkpoint_id, checkpoint.version + 1, is_pinned
    )
    _check_changed(done, checkpoint.checkpoint_id)


async def supersede_past(conn: Connection, job: Job, step: int) -> None:
    """Take everything past a step out of the series that counts."""
    await conn.execute(SQL["supersede_past"], job.tenant, job.job_id, step)


async def supersede(conn: Connection, checkpoints: Iterable[Checkpoint]) -> None:
    """Take checkpoints out of the series that counts."""
    if obsolete := [each.checkpoint_id for each in checkpoints]:
        await conn.execute(SQL["supersede"], obsolete)


async def begin_delete(
    conn: Connection, checkpoints: Iterable[Checkpoint], cause: DeleteCause
) -> None:
    """Hide visible checkpoints; the collector removes their objects."""
    if doomed := [each.checkpoint_id for each in checkpoints]:
        await conn.execute(SQL["begin_delete"], doomed, cause)


async def give_up_upload(conn: Connection, checkpoint_id: str, *, url_lifetime: timedelta) -> None:
    """Abort an upload; its objects go when its signed addresses have expired."""
    await conn.execute(SQL["give_up_upload"], checkpoint_id, url_lifetime)


async def end_delete(conn: Connection, checkpoint_id: str) -> int | None:
    """Note that the objects are gone; None if that was noted before."""
    version: int | None = await conn.fetchval(SQL["end_delete"], checkpoint_id)
    return version


async def hand_out(
    conn: Connection, owner: Owner, checkpoint_id: str, *, url_lifetime: timedelta
) -> bool:
    """Keep the objects for as long as signed addresses live; False if it is not visible."""
    row = await conn.fetchval(
        SQL["read_until"], owner.tenant, owner.project, checkpoint_id, url_lifetime
    )
    return row is not None


async def give_up_old_uploads(
    conn: Connection, *, age: timedelta, url_lifetime: timedelta
) -> Sequence[str]:
    """Abort uploads older than ``age`` and those of replaced runs; return their ids."""
    rows = await conn.fetch(SQL["give_up_old_uploads"], age, url_lifetime)
    return [row["checkpoint_id"] for row in rows]


async def give_up_uploads_of(conn: Connection, job: Job, *, url_lifetime: timedelta) -> None:
    """Abort the uploads of a job whose run is over."""
    await conn.execute(
        SQL["give_up_uploads_of"], job.tenant, job.job_id, job.fence_epoch, url_lifetime
    )


async def _add_files(conn: Connection, wanted: Checkpoint) -> None:
    await conn.execute(
        SQL["add_files"],
        wanted.checkpoint_id,
        wanted.tenant,
        [file.name for file in wanted.files],
        [file.size_bytes for file in wanted.files],
        [file.sha256 for file in wanted.files],
    )


def _check_changed(command_tag: str, checkpoint_id: str) -> None:
    if command_tag != "UPDATE 1":
        raise StaleCheckpoint(checkpoint_id)


def _checkpoint(row: asyncpg.Record) -> Checkpoint:
    cause = row["delete_cause"]
    return Checkpoint(
        checkpoint_id=row["checkpoint_id"],
        tenant=row["tenant"],
        project=row["project"],
        job_id=row["job_id"],
        epoch=row["epoch"],
        step=row["step"],
        state=CheckpointState(row["state"]),
        is_final=row["is_final"],
        is_pinned=row["is_pinned"],
        is_resumable=row["is_resumable"],
        is_superseded=row["is_superseded"],
        eval_loss=row["eval_loss"],
        eval_loss_text=row["eval_loss_text"],
        size_bytes=row["size_bytes"],
        manifest_sha256=row["manifest_sha256"],
        commit_time=row["commit_time"],
        delete_cause=None if cause is None else DeleteCause(cause),
        version=row["version"],
        files=tuple(
            File(name=name, size_bytes=size_bytes, sha256=sha256)
            for name, size_bytes, sha256 in row["files"] or ()
        ),
    )
