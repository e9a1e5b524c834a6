"""Use cases that need tokens: lengths, previews, and the exact numbers of a job."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lehr.errors import FieldViolation, InvalidArgument, NotFound
from lehr.rpc.auth import Caller
from lehr.samples.length import (
    LengthCounts,
    Overlong,
    Recommendation,
    fit,
    recommend,
)
from lehr.samples.prepare import DataFacts, prepare
from lehr.samples.table import TokenTable
from lehr.training.packable import check_packing
from lehr.training.spec import JobSpec
from services.catalog.domain.entries import Dataset, Model
from services.catalog.handlers.entries import get_entry
from services.catalog.handlers.shelves import Link, Shelves, links
from services.catalog.tokens.looking import Preview, Rows
from services.catalog.tokens.shelf import all_tables
from services.catalog.tokens.tables import Tables

PREVIEW_LINES_MAX = 100
_VALIDATION = "data.validation_dataset"


class ReferenceUnknown(InvalidArgument):
    """A spec names a model or dataset that the project does not have."""

    reason = "REFERENCE_UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a job will train on."""

    model: Model
    dataset: Dataset
    validation_dataset: Dataset | None
    facts: DataFacts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lengths:
    """Token lengths of a dataset, and what a maximum would do to its rows."""

    tokens: NDArray[np.int64]
    """Tokens of each row."""
    image_row_count: int
    advice: Recommendation
    max_length: int
    """The maximum that was asked about; without one, the recommendation."""
    truncate: LengthCounts
    drop: LengthCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewRequest:
    """Which rows are to be shown, and how."""

    dataset: str
    model: str
    lines: Sequence[int]
    """Empty for the first five rows."""
    file: str = ""
    """Name of the file that the lines are counted in; empty for the first."""
    max_length: int = 0
    """Tokens; 0 for no limit."""
    overlong: Overlong = "truncate"
    chat_template: str | None = None


class Tokens:
    """Answers what the tokens of datasets are."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self._tables = Tables(shelves)

    async def lengths(
        self,
        *,
        caller: Caller,
        dataset: str,
        model: str,
        max_length: int = 0,
        chat_template: str | None = None,
    ) -> Lengths:
        """Return all lengths, the one that covers 95 % of the rows, and what a maximum does.

        Raises:
            StillCounting: it takes longer than the caller can wait; he should ask again.
        """
        rows = await get_entry(self._shelves, Dataset, caller=caller, wanted=dataset)
        base = await get_entry(self._shelves, Model, caller=caller, wanted=model)
        table = await self._tables.table(rows, base, chat_template)
        return await asyncio.to_thread(_lengths, table, base.context_length or None, max_length)

    async def resolve(self, *, caller: Caller, spec: JobSpec) -> Resolved:
        """Fix revisions and count rows exactly as the trainer will.

        Raises:
            ReferenceUnknown: model or dataset is not there.
            InvalidArgument: a side would be empty, or the length is beyond the model's context.
            StillCounting: it takes longer than the caller can wait; he should ask again.
        """
        data = spec.data
        try:
            model = await get_entry(self._shelves, Model, caller=caller, wanted=spec.model)
        except NotFound as error:
            raise _unknown("model", error) from None
        dataset = await self._dataset(caller, spec.dataset, "dataset")
        held_out: Dataset | None = None
        if data.validation_dataset is not None:
            held_out = await self._dataset(caller, data.validation_dataset, _VALIDATION)
        if data.packing:
            check_packing(model.model_type)
        table = await self._tables.table(dataset, model, data.chat_template)
        validation: TokenTable | None = None
        if held_out is not None:
            validation = await self._tables.table(held_out, model, data.chat_template)

        def counted() -> DataFacts:
            facts = prepare(
                table,
                data=data,
                context=model.context_length or None,
                validation_table=validation,
            ).facts
            table.release()
            return facts

        facts = await asyncio.to_thread(counted)
        return Resolved(model=model, dataset=dataset, validation_dataset=held_out, facts=facts)

    async def preview(self, *, caller: Caller, wanted: PreviewRequest) -> list[Preview]:
        """Return rows exactly as they are trained.

        Raises:
            InvalidArgument: a line is not in the dataset, or too many are asked for.
        """
        if len(wanted.lines) > PREVIEW_LINES_MAX:
            raise InvalidArgument(f"ask for at most {PREVIEW_LINES_MAX} lines at a time")
        dataset = await get_entry(self._shelves, Dataset, caller=caller, wanted=wanted.dataset)
        base = await get_entry(self._shelves, Model, caller=caller, wanted=wanted.model)
        rows = Rows(
            lines=frozenset(wanted.lines),
            file=_file_number(dataset.row_files, wanted.file),
            files=dataset.row_files,
            max_length=wanted.max_length,
            overlong=wanted.overlong,
        )
        return await self._tables.look(rows, dataset, base, wanted.chat_template)

    async def links(self, dataset: Dataset) -> list[Link]:
        """Return signed addresses of all token tables of a dataset, each named by its digest."""
        return links(self._shelves, await all_tables(self._shelves.objects, dataset))

    async def _dataset(self, caller: Caller, reference: str, field: str) -> Dataset:
        try:
            return await get_entry(self._shelves, Dataset, caller=caller, wanted=reference)
        except NotFound as error:
            raise _unknown(field, error) from None


def _lengths(table: TokenTable, context: int | None, max_length: int) -> Lengths:
    tokens, rows = table.lengths, np.arange(len(table))
    advice = recommend(tokens, context=context)
    limit = max_length or advice.max_length
    found = Lengths(
        tokens=tokens,
        image_row_count=int(np.count_nonzero(table.images)),
        advice=advice,
        max_length=limit,
        truncate=fit(table, rows, max_length=limit, overlong="truncate").counts,
        drop=fit(table, rows, max_length=limit, overlong="drop").counts,
    )
    table.release()
    return found


def _file_number(files: Sequence[str], name: str) -> int:
    if not name:
        return 0
    if name not in files:
        raise InvalidArgument(f"the dataset has no file {name[:80]!r}; it has {', '.join(files)}")
    return list(files).index(name)


def _unknown(field: str, error: NotFound) -> ReferenceUnknown:
    return ReferenceUnknown(
        f"{field}: {error.message}",
        fields=[FieldViolation(field=field, description=error.message)],
    )
