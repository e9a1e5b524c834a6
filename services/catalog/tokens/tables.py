"""Opens the token table of a dataset, wherever it comes from; made by one at a time."""

from __future__ import annotations

import asyncio
import tempfile
from collections import OrderedDict
from pathlib import Path
from time import monotonic

from lehr.errors import Unavailable
from lehr.logs import get_logger
from lehr.objects import ObjectNotFound
from lehr.rpc.context import seconds_left
from lehr.samples.table import TokenTable
from lehr.samples.tokens import SampleTokenizer
from services.catalog.domain.entries import Dataset, Model, Reference
from services.catalog.domain.errors import DatasetNotFound
from services.catalog.handlers.datasets import images_file, rows_file
from services.catalog.handlers.models import tokenizer_folder
from services.catalog.handlers.uploads import Shelves, remove_objects
from services.catalog.storage import entries
from services.catalog.tokens.counting import Reading, count
from services.catalog.tokens.shelf import find_table, put_table, table_key

TOKENIZERS_KEPT = 4
COUNTED_AT_ONCE = 2
"""Datasets that are counted at the same time, each with processes of its own."""
_ANSWER_SECONDS = 2.0
"""What is left of a caller's time when he is told to ask again."""


class StillCounting(Unavailable):
    """A large dataset is being counted; it goes on without the caller."""

    reason = "STILL_COUNTING"


class Tables:
    """Token tables and tokenizers, the ones used last at hand."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self._tokenizers: OrderedDict[Reading, SampleTokenizer] = OrderedDict()
        self._making: dict[tuple[str, str], asyncio.Task[TokenTable]] = {}
        self._at_once = asyncio.Semaphore(COUNTED_AT_ONCE)

    async def tokenizer(
        self, model: Model, template: str | None, dataset: Dataset
    ) -> SampleTokenizer:
        """Return the tokenizer of a model, for rows of a dataset.

        Raises:
            InvalidArgument: the model has none, or cannot follow the template.
        """
        return (await self._loaded(model, template, dataset))[1]

    async def table(self, dataset: Dataset, model: Model, template: str | None) -> TokenTable:
        """Return the tokens of every row, counted once for all models with the same tokenizer.

        Raises:
            InvalidArgument: a row cannot be rendered with the template.
            StillCounting: it takes longer than the caller can wait; he should ask again.
        """
        reading, tokenizer = await self._loaded(model, template, dataset)
        key = (dataset.dataset_id, tokenizer.digest)
        if key not in self._making:
            task = asyncio.create_task(self._open(dataset, reading, tokenizer))
            self._making[key] = task
            task.add_done_callback(lambda made: self._made(key, made))
        left = seconds_left()
        patience = None if left is None else max(left - _ANSWER_SECONDS, left / 2)
        try:
            async with asyncio.timeout(patience):
                # Who stops waiting does not stop the work: he, or another, will ask again.
                return await asyncio.shield(self._making[key])
        except TimeoutError:
            raise StillCounting(
                f"the tokens of {dataset.name} ({dataset.row_count} rows) are still being counted; "
                "ask again in a moment",
                dataset=dataset.name,
                row_count=dataset.row_count,
            ) from None

    def _made(self, key: tuple[str, str], task: asyncio.Task[TokenTable]) -> None:
        del self._making[key]
        if not task.cancelled():
            # Nobody may be left who waits for it; an error nobody asks about is logged as ours.
            task.exception()

    async def _open(
        self, dataset: Dataset, reading: Reading, tokenizer: SampleTokenizer
    ) -> TokenTable:
        if not tokenizer.prints_dates:
            known = await self._known(dataset, tokenizer.digest)
            if known is not None:
                return known
        rows = await rows_file(self._shelves, dataset)
        with tempfile.TemporaryDirectory(dir=self._shelves.scratch, prefix="tokens-") as folder:
            path = Path(folder) / "table.safetensors"
            async with self._at_once:
                began = monotonic()
                await asyncio.to_thread(
                    count, rows, reading, path, processes=self._shelves.processes
                )
            get_logger().info(
                "tokens_counted",
                dataset_id=dataset.dataset_id,
                row_count=dataset.row_count,
                seconds=round(monotonic() - began, 3),
            )
            if not tokenizer.prints_dates:
                await put_table(self._shelves.objects, dataset, tokenizer.digest, path)
                await self._forget_if_deleted(dataset)
            # What is mapped stays readable without its name.
            return await asyncio.to_thread(TokenTable.open, path)

    async def _known(self, dataset: Dataset, digest: str) -> TokenTable | None:
        file = await find_table(self._shelves.objects, dataset, digest)
        if file is None:
            return None
        name = f"tokens-{dataset.dataset_id}-{file.sha256[:16]}"
        try:
            folder = await self._shelves.cache.folder(name, {table_key(dataset, digest): file})
        except ObjectNotFound:
            return None
        return await asyncio.to_thread(TokenTable.open, folder / file.name)

    async def _forget_if_deleted(self, dataset: Dataset) -> None:
        """Remove a table whose dataset was deleted while it was made."""
        reference = Reference(entry_id=dataset.dataset_id)
        async with self._shelves.db.connection() as conn:
            found = await entries.find_dataset(conn, dataset.tenant, dataset.project, reference)
        if found is None:
            await remove_objects(self._shelves, [dataset.tokens_prefix])
            raise DatasetNotFound(dataset.dataset_id)

    async def _loaded(
        self, model: Model, template: str | None, dataset: Dataset
    ) -> tuple[Reading, SampleTokenizer]:
        reading = Reading(
            model_dir=await tokenizer_folder(self._shelves, model),
            template=template,
            images=await images_file(self._shelves, dataset),
        )
        if reading not in self._tokenizers:
            self._tokenizers[reading] = await asyncio.to_thread(reading.load)
            while len(self._tokenizers) > TOKENIZERS_KEPT:
                self._tokenizers.popitem(last=False)
        self._tokenizers.move_to_end(reading)
        return reading, self._tokenizers[reading]
