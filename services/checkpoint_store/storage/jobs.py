"""Rows of ``jobs`` to values and back; callers hold a transaction."""

from collections.abc import Sequence
from pathlib import Path

import asyncpg

from lehr.postgres import Connection, Queries
from services.checkpoint_store.domain.checkpoint import Job
from services.checkpoint_store.domain.commands import Owner
from services.checkpoint_store.domain.errors import JobNotFound

SQL = Queries.load(Path(__file__).with_name("queries.sql"))


async def raise_fence(conn: Connection, owner: Owner, job_id: str, epoch: int) -> Job:
    """Raise the fence to at least ``epoch`` and return the job, new or known.

    Raises:
        JobNotFound: it is another project's.
    """
    row = await conn.fetchrow(SQL["raise_fence"], owner.tenant, owner.project, job_id, epoch)
    if row is None:
        raise JobNotFound(job_id)
    return _job(row)


async def lock(conn: Connection, owner: Owner, job_id: str) -> Job:
    """Take the lock under which everything of a job changes.

    Raises:
        JobNotFound: no such job, or another owner's.
    """
    row = await conn.fetchrow(SQL["lock_job"], owner.tenant, owner.project, job_id)
    if row is None:
        raise JobNotFound(job_id)
    return _job(row)


async def of_tenant(conn: Connection, tenant: str, job_id: str) -> Job | None:
    """Return the job that an event speaks about, without a lock."""
    row = await conn.fetchrow(SQL["job_of_tenant"], tenant, job_id)
    return None if row is None else _job(row)


async def decide_resume(
    conn: Connection, job: Job, checkpoint_id: str | None, skipped: Sequence[str]
) -> None:
    """Remember what the epoch at the fence continues from."""
    await conn.execute(
        SQL["decide_resume"],
        job.tenant,
        job.job_id,
        job.fence_epoch,
        checkpoint_id,
        list(skipped),
    )


async def end_resuming(conn: Connection, job: Job) -> None:
    """Let the resume point be pruned and deleted again."""
    await conn.execute(SQL["end_resuming"], job.tenant, job.job_id)


async def keep_newest(conn: Connection, job: Job, max_checkpoints: int) -> None:
    """Remember how many ordinary checkpoints the job keeps."""
    await conn.execute(SQL["keep_newest"], job.tenant, job.job_id, max_checkpoints)


async def expect_best(conn: Connection, tenant: str, job_id: str, *, epoch: int, step: int) -> None:
    """Remember the newest Best that the runner of the present epoch announced."""
    await conn.execute(SQL["expect_best"], tenant, job_id, epoch, step)


async def cursor(conn: Connection, name: str) -> str:
    """Return where a sweep goes on; empty at first."""
    return await conn.fetchval(SQL["cursor_of"], name) or ""


async def move_cursor(conn: Connection, name: str, value: str) -> None:
    """Remember how far a sweep has come."""
    await conn.execute(SQL["move_cursor"], name, value)


def _job(row: asyncpg.Record) -> Job:
    return Job(
        tenant=row["tenant"],
        project=row["project"],
        job_id=row["job_id"],
        fence_epoch=row["fence_epoch"],
        opened_epoch=row["opened_epoch"],
        resume_checkpoint_id=row["resume_checkpoint_id"],
        is_resuming=row["is_resuming"],
        skipped=tuple(row["skipped"]),
        max_checkpoints=row["max_checkpoints"],
        expected_best_epoch=row["expected_best_epoch"],
        expected_best_step=row["expected_best_step"],
    )
