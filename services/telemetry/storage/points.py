"""Rows of ``points`` to values and back; writers hold the lock of the job."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import asyncpg

from lehr.postgres import Connection
from services.telemetry.domain.owner import Owner
from services.telemetry.domain.series import (
    MetricFilter,
    Point,
    PointKey,
    Run,
    StoredPoint,
    value_to_text,
)
from services.telemetry.storage.jobs import SQL

RowPlace = tuple[int, int]
"""Where a row lies, good for as long as its job is locked."""


class Counting(NamedTuple):
    """The point of a key that counts."""

    epoch: int
    row: RowPlace


async def supersede(conn: Connection, run: Run) -> None:
    """Take out of the series what earlier runs said of steps that ``run`` computes anew."""
    await conn.execute(SQL["supersede"], run.tenant, run.job_id, run.epoch, run.resume_step)


async def stored_step(conn: Connection, tenant: str, job_id: str) -> int:
    """Return the step up to which the loss is stored without a gap."""
    step: int = await conn.fetchval(SQL["stored_step"], tenant, job_id)
    return step


async def counting(
    conn: Connection, tenant: str, job_id: str, *, first_step: int, last_step: int
) -> Mapping[PointKey, Counting]:
    """Return who has the word about each step and series of a job between two steps."""
    rows = await conn.fetch(SQL["points_that_count"], tenant, job_id, first_step, last_step)
    return {
        (job_id, row["step"], row["name"]): Counting(epoch=row["epoch"], row=row["row_place"])
        for row in rows
    }


async def give_way(conn: Connection, tenant: str, rows: Sequence[RowPlace]) -> None:
    """Take points out of the series that were found to count since their job was locked."""
    if rows:
        await conn.execute(SQL["give_way"], tenant, rows)


async def add(conn: Connection, tenant: str, points: Sequence[Point]) -> None:
    """Store points; of each key at most one may count, those stored already included."""
    if not points:
        return
    finite = [math.isfinite(point.value) for point in points]
    await conn.execute(
        SQL["add_points"],
        tenant,
        [point.job_id for point in points],
        [point.step for point in points],
        [point.name for point in points],
        [point.epoch for point in points],
        [point.run_id for point in points],
        [point.sequence for point in points],
        [point.value if is_so else None for point, is_so in zip(points, finite, strict=True)],
        [
            None if is_so else value_to_text(point.value)
            for point, is_so in zip(points, finite, strict=True)
        ],
        [point.time for point in points],
        [point.is_superseded for point in points],
    )


async def page(
    conn: Connection,
    owner: Owner,
    job_id: str,
    wanted: MetricFilter,
    *,
    limit: int,
) -> list[StoredPoint]:
    """Return points by step, at most ``limit``."""
    rows = await conn.fetch(
        SQL["points_page"],
        owner.tenant,
        owner.project,
        job_id,
        wanted.after_step,
        list(wanted.names),
        wanted.with_superseded,
        limit,
    )
    return list(map(_point, rows))


async def at_step(
    conn: Connection,
    owner: Owner,
    job_id: str,
    wanted: MetricFilter,
    *,
    step: int,
) -> list[StoredPoint]:
    """Return all points of one step."""
    rows = await conn.fetch(
        SQL["points_at"],
        owner.tenant,
        owner.project,
        job_id,
        step,
        list(wanted.names),
        wanted.with_superseded,
    )
    return list(map(_point, rows))


async def arrived(
    conn: Connection,
    owner: Owner,
    job_id: str,
    wanted: MetricFilter,
    *,
    after_arrival: int,
    limit: int,
) -> list[StoredPoint]:
    """Return points that count in the order in which they came, at most ``limit``."""
    rows = await conn.fetch(
        SQL["points_arrived"],
        owner.tenant,
        owner.project,
        job_id,
        wanted.after_step,
        list(wanted.names),
        after_arrival,
        limit,
    )
    return [_point(row, arrival=row["arrival"]) for row in rows]


def _point(row: asyncpg.Record, *, arrival: int = 0) -> StoredPoint:
    word = row["word"]
    return StoredPoint(
        step=row["step"],
        name=row["name"],
        value=value_to_text(row["value"]) if word is None else word,
        time=row["report_time"],
        epoch=row["epoch"],
        arrival=arrival,
    )
