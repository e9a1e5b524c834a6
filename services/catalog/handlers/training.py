"""Use cases that need tokens: lengths, previews, and the exact numbers of a job."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lehr.errors import FieldViolation, InvalidArgument, NotFound
from lehr.rpc.auth import Caller
from lehr.samples.length import Recommendation, fit, recommend
from lehr.samples.prepare import DataFacts, prepare
from lehr.samples.rows import Row, lines_of, read_row, read_rows
from lehr.samples.tokens import Sample, SampleTokenizer
from lehr.training.spec import JobSpec
from services.catalog.domain.entries import Dataset, Model
from services.catalog.handlers.datasets import get_dataset, rows_file
from services.catalog.handlers.models import get_model, tokenizer_folder
from services.catalog.handlers.uploads import Shelves
from services.catalog.storage import entries

PREVIEW_LINES = 5
PREVIEW_LINES_MAX = 100
TOKENIZERS_KEPT = 4


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """One row as it is trained."""

    line: int
    text: str
    whole: Sample
    sample: Sample
    """After any cut; empty when it is left out."""
    tokens: list[str]
    outcome: Literal["kept", "truncated", "dropped", "untrainable"]


class Tokens:
    """Counts tokens in threads, one dataset at a time, with the tokenizers used last at hand."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self._tokenizers: OrderedDict[str, SampleTokenizer] = OrderedDict()
        # Whole datasets are held while they are counted: one at a time bounds memory.
        self._counting = asyncio.Semaphore(1)

    async def lengths(self, dataset: Dataset, model: Model) -> list[int]:
        """Return the token length of every row, counted once for ever."""
        async with self._shelves.db.connection() as conn:
            known = await entries.lengths(conn, dataset, model)
        if known is not None:
            return known
        path = await rows_file(self._shelves, dataset)
        tokenizer = await self._tokenizer(model)
        async with self._counting:
            counted = await asyncio.to_thread(
                lambda: [len(sample) for sample in tokenizer.encode(read_rows(path))]
            )
        async with self._shelves.db.transaction() as conn:
            await entries.save_lengths(conn, dataset, model, counted)
        return counted

    async def recommend(
        self, *, caller: Caller, dataset: str, model: str
    ) -> tuple[list[int], Recommendation]:
        """Return all lengths and the length that covers 95 % of the rows."""
        rows = await get_dataset(self._shelves, caller=caller, dataset=dataset)
        base = await get_model(self._shelves, caller=caller, model=model)
        lengths = await self.lengths(rows, base)
        return lengths, recommend(lengths, context=base.context_length or None)

    async def resolve(self, *, caller: Caller, spec: JobSpec) -> Resolved:
        """Fix revisions and count rows exactly as the trainer will.

        Raises:
            ReferenceUnknown: model or dataset is not there.
            InvalidArgument: a side would be empty, or the length is beyond the model's context.
        """
        try:
            model = await get_model(self._shelves, caller=caller, model=spec.model)
        except NotFound as error:
            raise _unknown("model", error) from None
        dataset = await self._dataset(caller, spec.dataset, "dataset")
        held_out: Dataset | None = None
        if spec.data.validation_dataset is not None:
            held_out = await self._dataset(
                caller, spec.data.validation_dataset, "data.validation_dataset"
            )
        tokenizer = await self._tokenizer(model)
        path = await rows_file(self._shelves, dataset)
        held_out_path = None if held_out is None else await rows_file(self._shelves, held_out)

        def count() -> DataFacts:
            validation = None if held_out_path is None else list(read_rows(held_out_path))
            return prepare(
                list(read_rows(path)),
                tokenizer=tokenizer,
                data=spec.data,
                validation_rows=validation,
            ).facts

        async with self._counting:
            facts = await asyncio.to_thread(count)
        return Resolved(model=model, dataset=dataset, validation_dataset=held_out, facts=facts)

    async def preview(
        self,
        *,
        caller: Caller,
        dataset: str,
        model: str,
        lines: Sequence[int],
        max_length: int,
        overlong: Literal["truncate", "drop"],
    ) -> list[Preview]:
        """Return rows exactly as they are trained.

        Raises:
            InvalidArgument: a line is not in the dataset, or too many are asked for.
        """
        if len(lines) > PREVIEW_LINES_MAX:
            raise InvalidArgument(f"ask for at most {PREVIEW_LINES_MAX} lines at a time")
        rows = await get_dataset(self._shelves, caller=caller, dataset=dataset)
        base = await get_model(self._shelves, caller=caller, model=model)
        tokenizer = await self._tokenizer(base)
        path = await rows_file(self._shelves, rows)

        def look() -> list[Preview]:
            wanted = set(lines)
            found: list[Preview] = []
            for number, line in lines_of(path):
                if number in wanted or (not wanted and len(found) < PREVIEW_LINES):
                    row = read_row(line, number=number)
                    found.append(_preview(tokenizer, row, number, max_length, overlong))
                if len(found) == (len(wanted) or PREVIEW_LINES):
                    break
            missing = sorted(wanted - {one.line for one in found})
            if missing:
                raise InvalidArgument(f"the dataset has no row in line {missing[0]}")
            return found

        return await asyncio.to_thread(look)

    async def _dataset(self, caller: Caller, reference: str, field: str) -> Dataset:
        try:
            return await get_dataset(self._shelves, caller=caller, dataset=reference)
        except NotFound as error:
            raise _unknown(field, error) from None

    async def _tokenizer(self, model: Model) -> SampleTokenizer:
        if model.revision not in self._tokenizers:
            folder = await tokenizer_folder(self._shelves, model)
            loaded = await asyncio.to_thread(SampleTokenizer.load, folder)
            self._tokenizers[model.revision] = loaded
            while len(self._tokenizers) > TOKENIZERS_KEPT:
                self._tokenizers.popitem(last=False)
        self._tokenizers.move_to_end(model.revision)
        return self._tokenizers[model.revision]


def _preview(
    tokenizer: SampleTokenizer,
    row: Row,
    line: int,
    max_length: int,
    overlong: Literal["truncate", "drop"],
) -> Preview:
    rendered = tokenizer.render(row)
    [whole] = tokenizer.encode_rendered([rendered])
    limit = max_length or len(whole)
    kept, counts = fit([whole], max_length=limit, overlong=overlong)
    sample = kept[0] if kept else whole.last(min(limit, len(whole)))
    outcome: Literal["kept", "truncated", "dropped", "untrainable"] = "kept"
    if counts.dropped:
        outcome = "dropped"
    elif counts.untrainable:
        outcome = "untrainable"
    elif counts.affected:
        outcome = "truncated"
    return Preview(
        line=line,
        text=rendered.text,
        whole=whole,
        sample=sample,
        tokens=tokenizer.pieces(sample),
        outcome=outcome,
    )


def _unknown(field: str, error: NotFound) -> ReferenceUnknown:
    return ReferenceUnknown(
        f"{field}: {error.message}",
        fields=[FieldViolation(field=field, description=error.message)],
    )
