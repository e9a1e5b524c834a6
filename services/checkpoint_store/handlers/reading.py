"""Show checkpoints, and hand out the right to read one."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from lehr.postgres import Connection, Database
from services.checkpoint_store.domain.best import best_of
from services.checkpoint_store.domain.checkpoint import Checkpoint, File
from services.checkpoint_store.domain.commands import Owner
from services.checkpoint_store.domain.errors import (
    FileNotInCheckpoint,
    NoCheckpoint,
    StateForbids,
)
from services.checkpoint_store.storage import checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A checkpoint as a person sees it."""

    checkpoint: Checkpoint
    is_best: bool


async def visible_checkpoints(owner: Owner, job_id: str, *, db: Database) -> tuple[Shown, ...]:
    """Return the committed checkpoints of a job, lowest step first; none for an unknown job."""
    async with db.connection() as conn:
        known = await checkpoints.series(conn, owner, job_id)
    return tuple(one for one in _shown(known) if one.checkpoint.is_visible)


async def checkpoint_of(owner: Owner, checkpoint_id: str, *, db: Database) -> Shown:
    """Return a checkpoint in whatever state.

    Raises:
        CheckpointNotFound: no such checkpoint.
    """
    async with db.transaction(isolation="repeatable_read", readonly=True) as conn:
        return await _by_id(conn, owner, checkpoint_id)


async def download(
    owner: Owner,
    *,
    which: tuple[str, str],
    names: Sequence[str],
    db: Database,
    url_lifetime: timedelta,
) -> tuple[Shown, tuple[File, ...]]:
    """Return a checkpoint and the files to read; they stay for as long as their addresses live.

    ``which`` is a kind, ``checkpoint``, ``best`` or ``final``, with the id of a checkpoint or job.

    Raises:
        CheckpointNotFound, NoCheckpoint, FileNotInCheckpoint: there is no such thing.
        StateForbids: the checkpoint is not complete, or on its way out.
    """
    async with db.transaction() as conn:
        shown = await _which(conn, owner, which)
        found = shown.checkpoint
        known = {file.name: file for file in found.files}
        for name in names:
            if name not in known:
                raise FileNotInCheckpoint(found.checkpoint_id, name)
        if not await checkpoints.hand_out(
            conn, owner, found.checkpoint_id, url_lifetime=url_lifetime
        ):
            raise StateForbids(found.checkpoint_id, have=found.state, doing="downloaded")
    wanted = dict.fromkeys(names) if names else known
    return shown, tuple(known[name] for name in wanted)


async def _which(conn: Connection, owner: Owner, which: tuple[str, str]) -> Shown:
    kind, wanted_id = which
    if kind == "checkpoint":
        return await _by_id(conn, owner, wanted_id)
    for shown in _shown(await checkpoints.series(conn, owner, wanted_id)):
        is_it = shown.is_best if kind == "best" else shown.checkpoint.is_final
        if is_it and shown.checkpoint.is_visible:
            return shown
    raise NoCheckpoint(wanted_id, kind)


async def _by_id(conn: Connection, owner: Owner, checkpoint_id: str) -> Shown:
    found = await checkpoints.get(conn, owner, checkpoint_id)
    best = best_of(await checkpoints.series(conn, owner, found.job_id))
    return Shown(checkpoint=found, is_best=best is not None and best.checkpoint_id == checkpoint_id)


def _shown(known: Sequence[Checkpoint]) -> tuple[Shown, ...]:
    best = best_of(known)
    return tuple(Shown(checkpoint=each, is_best=each is best) for each in known)
