"""Rows <-> models and datasets; every statement names the tenant."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from lehr.postgres import Connection, Queries
from services.catalog.domain.entries import (
    Dataset,
    Entry,
    EntryState,
    File,
    Model,
    Progress,
    Reference,
    RowProblem,
    Source,
)
from services.catalog.domain.errors import ClaimLost, EntryBeingRemoved

E = TypeVar("E", bound=Entry)

KINDS: tuple[type[Entry], ...] = (Model, Dataset)

QUERIES = Queries.load(Path(__file__).with_name("queries.sql"))


def statement(name: str, kind: type[Entry]) -> str:
    """Return a statement for the table of a kind of entry."""
    columns = ", ".join(field.name for field in fields(kind))
    return QUERIES[name].format(table=f"{kind.noun}s", key=f"{kind.noun}_id", columns=columns)


async def add(conn: Connection, entry: Entry) -> None:
    """Register an entry; only one that is awaited or was refused begins anew.

    Raises:
        EntryBeingRemoved: it was there before, and its objects still are.
    """
    await conn.execute(
        statement("add_entry", type(entry)),
        entry.entry_id,
        entry.tenant,
        entry.project,
        entry.name,
        entry.revision,
        entry.state,
        entry.license,
        [asdict(file) for file in entry.files],
        asdict(entry.source),
        entry.acknowledged_by,
    )
    # Asked after the row is there, for it may have waited for the end of a removal.
    if await conn.fetchval(QUERIES["has_removal"], entry.entry_id):
        raise EntryBeingRemoved(entry.entry_id)
    if isinstance(entry, Dataset):
        await conn.execute(
            QUERIES["begin_report"], entry.tenant, entry.entry_id, dict(entry.columns)
        )


async def find(
    conn: Connection, kind: type[E], tenant: str, project: str, reference: Reference
) -> E | None:
    """Return an entry; by id also one that is not ready."""
    if reference.entry_id:
        query = statement("entry_by_id", kind)
        row = await conn.fetchrow(query, tenant, project, reference.entry_id)
    else:
        query, wanted = (
            statement("entry_by_name", kind),
            (reference.name, reference.revision_prefix),
        )
        row = await conn.fetchrow(query, tenant, project, *wanted)
    return None if row is None else _entry(kind, row)


async def again(conn: Connection, entry: E) -> E | None:
    """Return an entry as it is now; None where it is gone."""
    reference = Reference(entry_id=entry.entry_id)
    return await find(conn, type(entry), entry.tenant, entry.project, reference)


async def named(
    conn: Connection,
    kind: type[E],
    place: tuple[str, str],
    text: str,
    after: tuple[str, str],
    limit: int,
) -> list[E]:
    """Return a page of ready entries by name and id; ``place`` is tenant and project."""
    rows = await conn.fetch(statement("entries_named", kind), *place, text, *after, limit)
    return [_entry(kind, row) for row in rows]


async def begin(conn: Connection, entry: Entry) -> None:
    """Have an entry validated; one that is no longer uploading stays as it is."""
    await conn.execute(statement("begin_entry", type(entry)), entry.tenant, entry.entry_id)


async def imported(conn: Connection, entry: Entry, worker: str) -> None:
    """Have what was imported validated.

    Raises:
        ClaimLost: it is no longer this worker's.
    """
    files = [asdict(file) for file in entry.files]
    row = await conn.fetchrow(
        statement("import_entry", type(entry)),
        entry.tenant,
        entry.entry_id,
        worker,
        entry.revision,
        files,
    )
    _check_claim(row, entry)


async def end_work(
    conn: Connection, entry: Entry, worker: str, state: EntryState, *, refusal: str = ""
) -> None:
    """Move an entry to READY, REFUSED or back to UPLOADING, with what was found; in a transaction.

    Raises:
        ClaimLost: it is no longer this worker's; nothing was changed.
    """
    place = (entry.tenant, entry.entry_id, worker)
    if isinstance(entry, Model):
        facts = (entry.model_type, entry.parameter_count, entry.context_length, dict(entry.facts))
        await conn.execute(QUERIES["describe_model"], *place, *facts)
    elif isinstance(entry, Dataset):
        await conn.execute(QUERIES["report_dataset"], *place, *_report(entry))
    row = await conn.fetchrow(statement("end_work", type(entry)), *place, state, refusal)
    _check_claim(row, entry)


async def remove(conn: Connection, entry: Entry, *, unchanged: bool) -> bool:
    """Remove an entry, or only if it is ``unchanged`` since it was read; False: it stays."""
    seen = entry.change_time if unchanged else None
    query = statement("remove_entry", type(entry))
    return await conn.fetchval(query, entry.tenant, entry.entry_id, seen) is not None


async def stale(
    conn: Connection, kind: type[E], lifetimes: tuple[timedelta, timedelta], count: int
) -> list[E]:
    """Return uploads that began so long ago and never ended, and what was refused so long ago."""
    rows = await conn.fetch(statement("stale_entries", kind), *lifetimes, count)
    return [_entry(kind, row) for row in rows]


def _check_claim(row: asyncpg.Record | None, entry: Entry) -> None:
    if row is None:
        raise ClaimLost(entry.entry_id)


def _report(dataset: Dataset) -> Sequence[Any]:
    written = (dataset.rows_file, dataset.images_file, dataset.keys_file)
    return (
        dataset.row_kind,
        dataset.row_count,
        dataset.distinct_count,
        dataset.image_row_count,
        dict(dataset.layouts),
        [asdict(problem) for problem in dataset.problems],
        *(None if file is None else asdict(file) for file in written),
        list(dataset.row_files),
    )


def _entry(kind: type[E], row: asyncpg.Record) -> E:
    found = {
        **dict(row),
        "files": tuple(File(**file) for file in row["files"]),
        "source": Source(**row["source"]),
        "progress": Progress(**row["progress"]),
        "state": EntryState(row["state"]),
    }
    if kind is Dataset:
        found["problems"] = tuple(
            RowProblem(**{**problem, "lines": tuple(problem["lines"])})
            for problem in row["problems"]
        )
        found["row_files"] = tuple(row["row_files"])
        for name in ("rows_file", "images_file", "keys_file"):
            found[name] = None if row[name] is None else File(**row[name])
    return kind(**found)
