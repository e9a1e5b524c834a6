"""Rows <-> models and datasets; every statement names the tenant."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import asyncpg

from lehr.postgres import Connection, Queries
from services.catalog.domain.entries import Dataset, File, Model, Reference, RowProblem

QUERIES = Queries.load(Path(__file__).with_name("queries.sql"))


async def add_model(conn: Connection, model: Model) -> None:
    """Register a model; one that was committed stays as it is."""
    await conn.execute(
        QUERIES["add_model"],
        model.model_id,
        model.tenant,
        model.project,
        model.name,
        model.revision,
        model.license,
        [asdict(file) for file in model.files],
    )


async def find_model(
    conn: Connection, tenant: str, project: str, reference: Reference
) -> Model | None:
    """Return a model; by id also one that is not committed yet."""
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
    """Return a page of committed models by name and id."""
    rows = await conn.fetch(QUERIES["models_named"], tenant, project, text, *after, limit)
    return [_model(row) for row in rows]


async def commit_model(conn: Connection, model: Model) -> bool:
    """Make a model visible; False when it was so before."""
    row = await conn.fetchrow(
        QUERIES["commit_model"],
        model.tenant,
        model.model_id,
        model.model_type,
        model.parameter_count,
        model.context_length,
    )
    return row is not None


async def forget_model(conn: Connection, model: Model) -> bool:
    """Remove a model that was never committed; False when it is gone or was committed."""
    return await conn.fetchval(QUERIES["forget_model"], model.tenant, model.model_id) is not None


async def add_dataset(conn: Connection, dataset: Dataset) -> None:
    """Register a dataset; one that was committed stays as it is."""
    await conn.execute(
        QUERIES["add_dataset"],
        dataset.dataset_id,
        dataset.tenant,
        dataset.project,
        dataset.name,
        dataset.revision,
        asdict(dataset.file),
    )


async def find_dataset(
    conn: Connection, tenant: str, project: str, reference: Reference
) -> Dataset | None:
    """Return a dataset; by id also one that is not committed yet."""
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
    """Return a page of committed datasets by name and id."""
    rows = await conn.fetch(QUERIES["datasets_named"], tenant, project, text, *after, limit)
    return [_dataset(row) for row in rows]


async def commit_dataset(conn: Connection, dataset: Dataset) -> bool:
    """Make a dataset visible; False when it was so before."""
    row = await conn.fetchrow(
        QUERIES["commit_dataset"],
        dataset.tenant,
        dataset.dataset_id,
        dataset.row_kind,
        dataset.row_count,
        dataset.distinct_count,
        [asdict(problem) for problem in dataset.problems],
    )
    return row is not None


async def forget_dataset(conn: Connection, dataset: Dataset) -> bool:
    """Remove a dataset that was never committed; False when it is gone or was committed."""
    removed = await conn.fetchval(QUERIES["forget_dataset"], dataset.tenant, dataset.dataset_id)
    return removed is not None


async def abandoned(conn: Connection, older_than: timedelta) -> tuple[list[Model], list[Dataset]]:
    """Return what began to be uploaded so long ago and never was committed."""
    models = await conn.fetch(QUERIES["abandoned_models"], older_than)
    datasets = await conn.fetch(QUERIES["abandoned_datasets"], older_than)
    return [_model(row) for row in models], [_dataset(row) for row in datasets]


async def lengths(conn: Connection, dataset: Dataset, model: Model) -> list[int] | None:
    """Return the token length of every row, where it was counted before."""
    found: list[int] | None = await conn.fetchval(
        QUERIES["lengths_of"], dataset.tenant, dataset.dataset_id, model.model_id
    )
    return found


async def save_lengths(
    conn: Connection, dataset: Dataset, model: Model, tokens: Sequence[int]
) -> None:
    """Keep the token length of every row."""
    await conn.execute(
        QUERIES["save_lengths"], dataset.tenant, dataset.dataset_id, model.model_id, list(tokens)
    )


def _model(row: asyncpg.Record) -> Model:
    fields = {name: row[name] for name in Model.__dataclass_fields__ if name != "files"}
    return Model(files=tuple(File(**file) for file in row["files"]), **fields)


def _dataset(row: asyncpg.Record) -> Dataset:
    skipped = ("file", "problems")
    fields = {name: row[name] for name in Dataset.__dataclass_fields__ if name not in skipped}
    problems = tuple(
        RowProblem(**{**problem, "lines": tuple(problem["lines"])}) for problem in row["problems"]
    )
    return Dataset(file=File(**row["file"]), problems=problems, **fields)
