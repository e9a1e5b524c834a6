"""Rows <-> models and datasets; every statement names the tenant."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

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
from services.catalog.domain.errors import RevisionExists

QUERIES = Queries.load(Path(__file__).with_name("queries.sql"))


async def add_model(conn: Connection, model: Model) -> None:
    """Register a model; only one that is awaited or was refused begins anew."""
    await conn.execute(QUERIES["add_model"], model.model_id, *_announced(model))


async def find_model(
    conn: Connection, tenant: str, project: str, reference: Reference
) -> Model | None:
    """Return a model; by id also one that is not ready."""
    if reference.entry_id:
        row = await conn.fetchrow(QUERIES["model_by_id"], tenant, project, reference.entry_id)
    else:
        row = await conn.fetchrow(
            QUERIES["model_by_name"], tenant, project, reference.name, reference.revision_prefix
        )
    return None if row is None else _model(row)


async def models_named(
    conn: Connection, tenant: str, project: str, text: str, after: tuple[str, str], limit: int
) -> list[Model]:
    """Return a page of ready models by name and id."""
    rows = await conn.fetch(QUERIES["models_named"], tenant, project, text, *after, limit)
    return [_model(row) for row in rows]


async def begin_model(conn: Connection, model: Model) -> None:
    """Have a model validated; one that is no longer uploading stays as it is."""
    await conn.execute(QUERIES["begin_model"], model.tenant, model.model_id)


async def import_model(conn: Connection, model: Model, worker: str) -> bool:
    """Have what was imported validated; False when the claim is lost.

    Raises:
        RevisionExists: the name has this revision already.
    """
    try:
        row = await conn.fetchrow(QUERIES["import_model"], *_imported(model, worker))
    except asyncpg.UniqueViolationError:
        raise RevisionExists(model.name, model.revision) from None
    return row is not None


async def ready_model(conn: Connection, model: Model, worker: str) -> bool:
    """Make a model visible; False when the claim is lost."""
    row = await conn.fetchrow(
        QUERIES["ready_model"],
        model.tenant,
        model.model_id,
        worker,
        model.model_type,
        model.parameter_count,
        model.context_length,
        dict(model.facts),
    )
    return row is not None


async def refuse_model(
    conn: Connection, model: Model, worker: str, refusal: str, state: EntryState
) -> bool:
    """Move a model to REFUSED or back to UPLOADING; False when the claim is lost."""
    row = await conn.fetchrow(
        QUERIES["refuse_model"], model.tenant, model.model_id, worker, refusal, state
    )
    return row is not None


async def add_dataset(conn: Connection, dataset: Dataset) -> None:
    """Register a dataset; only one that is awaited or was refused begins anew."""
    await conn.execute(
        QUERIES["add_dataset"], dataset.dataset_id, *_announced(dataset), dict(dataset.columns)
    )


async def find_dataset(
    conn: Connection, tenant: str, project: str, reference: Reference
) -> Dataset | None:
    """Return a dataset; by id also one that is not ready."""
    if reference.entry_id:
        row = await conn.fetchrow(QUERIES["dataset_by_id"], tenant, project, reference.entry_id)
    else:
        row = await conn.fetchrow(
            QUERIES["dataset_by_name"], tenant, project, reference.name, reference.revision_prefix
        )
    return None if row is None else _dataset(row)


async def datasets_named(
    conn: Connection, tenant: str, project: str, text: str, after: tuple[str, str], limit: int
) -> list[Dataset]:
    """Return a page of ready datasets by name and id."""
    rows = await conn.fetch(QUERIES["datasets_named"], tenant, project, text, *after, limit)
    return [_dataset(row) for row in rows]


async def begin_dataset(conn: Connection, dataset: Dataset) -> None:
    """Have a dataset validated; one that is no longer uploading stays as it is."""
    await conn.execute(QUERIES["begin_dataset"], dataset.tenant, dataset.dataset_id)


async def import_dataset(conn: Connection, dataset: Dataset, worker: str) -> bool:
    """Have what was imported validated; False when the claim is lost.

    Raises:
        RevisionExists: the name has this revision already.
    """
    try:
        row = await conn.fetchrow(QUERIES["import_dataset"], *_imported(dataset, worker))
    except asyncpg.UniqueViolationError:
        raise RevisionExists(dataset.name, dataset.revision) from None
    return row is not None


async def ready_dataset(conn: Connection, dataset: Dataset, worker: str) -> bool:
    """Make a dataset visible; False when the claim is lost."""
    row = await conn.fetchrow(
        QUERIES["ready_dataset"],
        dataset.tenant,
        dataset.dataset_id,
        worker,
        *_report(dataset),
        *(
            None if file is None else asdict(file)
            for file in (dataset.rows_file, dataset.images_file, dataset.keys_file)
        ),
        list(dataset.row_files),
    )
    return row is not None


async def refuse_dataset(
    conn: Connection, dataset: Dataset, worker: str, refusal: str, state: EntryState
) -> bool:
    """Move a dataset to REFUSED, with its report, or back to UPLOADING; False: claim lost."""
    row = await conn.fetchrow(
        QUERIES["refuse_dataset"],
        dataset.tenant,
        dataset.dataset_id,
        worker,
        refusal,
        state,
        *_report(dataset),
    )
    return row is not None


async def remove(conn: Connection, entry: Entry, *, unchanged: bool) -> bool:
    """Remove an entry, or only if it is ``unchanged`` since it was read; False: it stays."""
    name = "remove_model" if isinstance(entry, Model) else "remove_dataset"
    seen = entry.change_time if unchanged else None
    return await conn.fetchval(QUERIES[name], entry.tenant, entry.entry_id, seen) is not None


async def stale(
    conn: Connection, *, upload_lifetime: timedelta, refused_lifetime: timedelta
) -> list[Entry]:
    """Return uploads that began so long ago and never ended, and what was refused so long ago."""
    models = await conn.fetch(QUERIES["stale_models"], upload_lifetime, refused_lifetime)
    datasets = await conn.fetch(QUERIES["stale_datasets"], upload_lifetime, refused_lifetime)
    return [*map(_model, models), *map(_dataset, datasets)]


async def awaiting_parts(conn: Connection, entry_ids: Sequence[str]) -> set[str]:
    """Return which of these entries may still need their uploaded parts."""
    rows = await conn.fetch(QUERIES["awaiting_parts"], list(entry_ids))
    return {row["entry_id"] for row in rows}


def _announced(entry: Entry) -> tuple[Any, ...]:
    return (
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


def _imported(entry: Entry, worker: str) -> tuple[Any, ...]:
    return (
        entry.tenant,
        entry.entry_id,
        worker,
        entry.revision,
        [asdict(file) for file in entry.files],
        entry.license,
        asdict(entry.source),
        entry.acknowledged_by,
    )


def _report(dataset: Dataset) -> tuple[Any, ...]:
    return (
        dataset.row_kind,
        dataset.row_count,
        dataset.distinct_count,
        dataset.image_row_count,
        dict(dataset.layouts),
        [asdict(problem) for problem in dataset.problems],
    )


def _shared(row: asyncpg.Record) -> dict[str, Any]:
    return {
        **dict(row),
        "files": tuple(File(**file) for file in row["files"]),
        "source": Source(**row["source"]),
        "progress": Progress(**row["progress"]),
        "state": EntryState(row["state"]),
    }


def _model(row: asyncpg.Record) -> Model:
    return Model(**_shared(row))


def _dataset(row: asyncpg.Record) -> Dataset:
    fields = _shared(row)
    fields["problems"] = tuple(
        RowProblem(**{**problem, "lines": tuple(problem["lines"])}) for problem in row["problems"]
    )
    fields["row_files"] = tuple(row["row_files"])
    for name in ("rows_file", "images_file", "keys_file"):
        fields[name] = None if row[name] is None else File(**row[name])
    return Dataset(**fields)
