"""Use cases that need tokens: lengths, previews, and the exact numbers of a job."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lehr.errors import FieldViolation, InvalidArgument, NotFound
from lehr.rpc.auth import Caller
from lehr.samples.canonical import Located, read_canonical
from lehr.samples.length import (
    Fitted,
    LengthCounts,
    Overlong,
    Recommendation,
    fit,
    recommend,
)
from lehr.samples.prepare import DataFacts, prepare
from lehr.samples.selection import Sample, Samples
from lehr.samples.table import TokenTable
from lehr.samples.tabulate import tabulate
from lehr.samples.tokens import SampleTokenizer
from lehr.training.packable import check_packing
from lehr.training.spec import JobSpec
from services.catalog.domain.entries import Dataset, Model
from services.catalog.handlers.datasets import get_dataset, rows_file
from services.catalog.handlers.models import get_model
from services.catalog.handlers.uploads import Link, Shelves
from services.catalog.tokens.shelf import all_tables
from services.catalog.tokens.tables import Tables

PREVIEW_LINES = 5
PREVIEW_LINES_MAX = 100
Outcome = Literal["kept", "truncated", "dropped", "untrainable"]
_SIDES = ("chosen", "rejected")
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Preview:
    """One text of a row as it is trained."""

    line: int
    file: str
    text: str
    side: str
    """chosen or rejected; empty for rows with one answer."""
    token_count: int
    """Tokens before any cut."""
    sample: Sample
    """After any cut; of a row that is left out, what would have been kept of it."""
    tokens: list[str]
    outcome: Outcome


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
        rows = await get_dataset(self._shelves, caller=caller, dataset=dataset)
        base = await get_model(self._shelves, caller=caller, model=model)
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
            model = await get_model(self._shelves, caller=caller, model=spec.model)
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
        dataset = await get_dataset(self._shelves, caller=caller, dataset=wanted.dataset)
        base = await get_model(self._shelves, caller=caller, model=wanted.model)
        tokenizer = await self._tables.tokenizer(base, wanted.chat_template, dataset)
        path = await rows_file(self._shelves, dataset)
        files = dataset.row_files
        file = _file_number(files, wanted.file)

        def look() -> list[Preview]:
            found: list[Located] = []
            lines = set(wanted.lines)
            for one in read_canonical(path):
                if one.file == file and (not lines or one.line in lines):
                    found.append(one)
                if len(found) == (len(lines) or PREVIEW_LINES):
                    break
            missing = sorted(lines - {one.line for one in found})
            if missing:
                raise InvalidArgument(f"the dataset has no row in line {missing[0]}")
            name = files[file] if len(files) > 1 else ""
            return [shown for one in found for shown in _previews(tokenizer, one, name, wanted)]

        return await asyncio.to_thread(look)

    async def links(self, dataset: Dataset) -> list[Link]:
        """Return signed addresses of all token tables of a dataset, each named by its digest."""
        sign, lifetime = self._shelves.objects.presign_get, self._shelves.link_lifetime
        return [
            Link(file=file, url=sign(key, lifetime))
            for key, file in await all_tables(self._shelves.objects, dataset)
        ]

    async def _dataset(self, caller: Caller, reference: str, field: str) -> Dataset:
        try:
            return await get_dataset(self._shelves, caller=caller, dataset=reference)
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


def _previews(
    tokenizer: SampleTokenizer, row: Located, file: str, wanted: PreviewRequest
) -> list[Preview]:
    table = tabulate([row], tokenizer)
    texts, length = tokenizer.render(row.row), int(table.lengths[0])
    limit = wanted.max_length or length
    outcome = _outcome(fit(table, np.arange(1), max_length=limit, overlong=wanted.overlong).counts)
    wholes, samples = _texts(table, length), _texts(table, limit)
    return [
        Preview(
            line=row.line,
            file=file,
            text=text.text,
            side=side,
            token_count=len(whole),
            sample=sample,
            tokens=tokenizer.pieces(sample),
            outcome=outcome,
        )
        for text, side, whole, sample in zip(
            texts, _SIDES if len(texts) > 1 else ("",), wholes, samples, strict=True
        )
    ]


def _texts(table: TokenTable, limit: int) -> tuple[Sample, ...]:
    """Return the texts of a table's only row, as far as the limit and whole answers allow."""
    is_compared = len(table.segment_ends[0]) > 1
    longest_cut = int(table.segment_ends[0, 0]) if is_compared else int(table.lengths[0])
    cut = min(max(int(table.lengths[0]) - limit, 0), longest_cut)
    fitted = Fitted(rows=np.zeros(1, dtype=np.int64), cuts=np.array([cut]), counts=LengthCounts())
    samples = Samples(table, fitted)
    return samples.sides(0) if len(table.segment_ends[0]) == len(_SIDES) + 1 else (samples[0],)


def _outcome(counts: LengthCounts) -> Outcome:
    if counts.dropped:
        return "dropped"
    if counts.untrainable:
        return "untrainable"
    return "truncated" if counts.affected else "kept"


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
