"""Rows of progress: what runs say of themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence

import asyncpg

from lehr.postgres import Connection
from services.scheduler.domain.progress import Evaluated, Progress, Stepped
from services.scheduler.storage.sql import SQL


async def save_steps(conn: Connection, tenant: str, stepped: Stepped) -> None:
    """Note how far a run is, unless a newer run or report has been seen."""
    await conn.execute(
        SQL["save_steps"],
        stepped.run_id,
        tenant,
        stepped.epoch,
        stepped.sequence,
        stepped.step,
        stepped.total_steps,
        stepped.remaining_seconds,
        json.dumps(dict(stepped.values)),
    )


async def save_evaluation(conn: Connection, tenant: str, evaluated: Evaluated) -> None:
    """Note an evaluation, unless a newer run or report has been seen."""
    await conn.execute(
        SQL["save_evaluation"],
        evaluated.run_id,
        tenant,
        evaluated.epoch,
        evaluated.sequence,
        evaluated.best_step,
        evaluated.best_loss,
        evaluated.baseline_loss,
        evaluated.eval_loss,
    )
    if evaluated.baseline_loss is not None:
        await conn.execute(
            SQL["save_baseline"],
            evaluated.run_id,
            tenant,
            evaluated.epoch,
            evaluated.baseline_loss,
        )


async def of_jobs(conn: Connection, tenant: str, job_ids: Sequence[str]) -> dict[str, Progress]:
    """Return how far jobs are; those that have said nothing yet are left out."""
    rows = await conn.fetch(SQL["progress_of"], tenant, list(job_ids))
    return {row["job_id"]: _progress(row) for row in rows}


def _progress(row: asyncpg.Record) -> Progress:
    return Progress(
        step=row["step"],
        total_steps=row["total_steps"],
        remaining_seconds=row["remaining_seconds"],
        values=json.loads(row["step_values"]),
        best_step=row["best_step"],
        best_loss=row["best_loss"],
        baseline_loss=row["baseline_loss"],
        eval_loss=row["eval_loss"],
    )
