"""Opens the token table of a dataset, wherever it comes from; made by one at a time."""

from __future__ import annotations

import asyncio
import tempfile
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

from lehr.errors import Unavailable
from lehr.logs import get_logger
from lehr.objects import ObjectNotFound
from lehr.rpc.context import seconds_left
from lehr.samples.table import TokenTable
from services.catalog.domain.entries import Dataset, Model
from services.catalog.domain.errors import DatasetNotFound
from services.catalog.handlers.datasets import images_file, rows_file
from services.catalog.handlers.models import tokenizer_folder
from services.catalog.handlers.shelves import Shelves, remove_objects
from services.catalog.storage import entries
from services.catalog.tokens.counting import Described, Reading, count, describe
from services.catalog.tokens.looking import Preview, Rows, look
from services.catalog.tokens.shelf import find_table, put_table, table_key

DESCRIPTIONS_KEPT = 1000
LOOKED_AT_ONCE = 2
"""Processes that look at a tokenizer, or at single rows, at the same time."""
COUNTED_AT_ONCE = 2
"""Datasets that are counted at the same time, each with processes of its own."""
_ANSWER_SECONDS = 2.0
"""What is left of a caller's time when he is told to ask again."""


class StillCounting(Unavailable):
    """A large dataset is being counted; it goes on without the caller."""

    reason = "STILL_COUNTING"


class Tables:
    """Token tables, and what is known of the tokenizers that make them."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self._described: OrderedDict[Reading, Described] = OrderedDict()
        self._making: dict[tuple[str, str], asyncio.Task[TokenTable]] = {}
        self._at_once = asyncio.Semaphore(COUNTED_AT_ONCE)
        # Threads of its own: who stops waiting frees none, and others' are not used up.
        self._looking = ThreadPoolExecutor(LOOKED_AT_ONCE, thread_name_prefix="look")

    async def look(
        self, rows: Rows, dataset: Dataset, model: Model, template: str | None
    ) -> list[Preview]:
        """Return rows exactly as they are trained.

        Raises:
            InvalidArgument: a row is not there or cannot be rendered, or they are too long.
        """
        reading = await self._reading(model, template, dataset)
        path = await rows_file(self._shelves, dataset)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._looking, look, path, reading, rows)

    async def table(self, dataset: Dataset, model: Model, template: str | None) -> TokenTable:
        """Return the tokens of every row, counted once for all models with the same tokenizer.

        Raises:
            InvalidArgument: a row cannot be rendered with the template.
            StillCounting: it takes longer than the caller can wait; he should ask again.
        """
        reading = await self._reading(model, template, dataset)
        described = await self._describe(reading)
        key = (dataset.dataset_id, described.digest)
        if key not in self._making:
            task = asyncio.create_task(self._open(dataset, reading, described))
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

    async def _open(self, dataset: Dataset, reading: Reading, described: Described) -> TokenTable:
        if not described.prints_dates:
            known = await self._known(dataset, described.digest)
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
            if not described.prints_dates:
                await put_table(self._shelves.objects, dataset, described.digest, path)
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
        async with self._shelves.db.connection() as conn:
            found = await entries.again(conn, dataset)
        if found is None:
            await remove_objects(self._shelves, [dataset.tokens_prefix])
            raise DatasetNotFound(dataset.dataset_id)

    async def _reading(self, model: Model, template: str | None, dataset: Dataset) -> Reading:
        return Reading(
            model_dir=await tokenizer_folder(self._shelves, model),
            template=template,
            images=await images_file(self._shelves, dataset),
        )

    async def _describe(self, reading: Reading) -> Described:
        if reading not in self._described:
            loop = asyncio.get_running_loop()
            described = await loop.run_in_executor(self._looking, describe, reading)
            self._described[reading] = described
            while len(self._described) > DESCRIPTIONS_KEPT:
                self._described.popitem(last=False)
            return described
        return self._described[reading]
