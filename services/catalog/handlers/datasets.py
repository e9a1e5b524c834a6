"""Use cases of datasets."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from lehr import faults
from lehr.errors import InvalidArgument
from lehr.events import outbox
from lehr.events.catalog import DatasetAdded
from lehr.ids import derived_id
from lehr.rpc.auth import Caller
from lehr.samples.rows import read_row
from services.catalog.domain.entries import Dataset, File, Reference, check_file, check_name
from services.catalog.domain.errors import DatasetNotFound, UploadRefused
from services.catalog.domain.report import Report
from services.catalog.handlers.uploads import Link, Shelves, verify
from services.catalog.storage import entries

FILE_NAME = "rows.jsonl"
LINE_BYTES_MAX = 32 * 2**20
"""Longest line that is read as a row."""


async def add_dataset(
    shelves: Shelves, *, caller: Caller, name: str, file: File
) -> tuple[Dataset, Link]:
    """Register a dataset and return where its file goes; no address when this revision is there.

    Raises:
        UploadRefused: name, size or kind of file is not taken.
    """
    check_name(name)
    check_file(file)
    if not file.name.endswith((".jsonl", ".ndjson")):
        raise UploadRefused("file.name", f"is {file.name!r}; give JSON lines, *.jsonl")
    dataset_id = derived_id("ds", caller.tenant, f"{caller.project}/{name}@{file.sha256}")
    wanted = Dataset(
        dataset_id=dataset_id, tenant=caller.tenant, project=caller.project, name=name, file=file
    )
    async with shelves.db.transaction() as conn:
        await entries.add_dataset(conn, wanted)
        dataset = await entries.find_dataset(
            conn, caller.tenant, caller.project, Reference(entry_id=dataset_id)
        )
    if dataset is None:
        raise DatasetNotFound(dataset_id)
    url = ""
    if not dataset.is_committed:
        url = shelves.objects.presign_put(dataset.key, shelves.link_lifetime)
    return dataset, Link(file=file, url=url)


async def commit_dataset(
    shelves: Shelves, *, caller: Caller, dataset_id: str
) -> tuple[Dataset, bool]:
    """Verify the file, look at every row, and accept the dataset or refuse it.

    Returns the dataset with its report, and whether it was accepted; a refused one is removed.

    Raises:
        DatasetNotFound: the project has no such dataset.
        UploadIncomplete: the file has not arrived as announced; it may be sent again.
    """
    dataset = await get_dataset(shelves, caller=caller, dataset=dataset_id, committed=False)
    if dataset.is_committed:
        return dataset, True
    await verify(shelves.objects, {dataset.key: dataset.file})
    report = await asyncio.to_thread(_report_on, await rows_file(shelves, dataset))
    problems = report.finish()
    checked = replace(
        dataset,
        row_kind=report.row_kind,
        row_count=report.row_count,
        distinct_count=report.distinct_count,
        problems=problems,
    )
    if not report.is_accepted:
        await forget_dataset(shelves, dataset)
        return checked, False
    async with shelves.db.transaction() as conn:
        if await entries.commit_dataset(conn, checked):
            event = DatasetAdded(
                tenant=dataset.tenant,
                dataset_id=dataset_id,
                name=dataset.name,
                revision=dataset.revision,
                row_count=checked.row_count,
            )
            await outbox.add(conn, event, sequence=1, source="catalog")
    await faults.hit("catalog.commit_dataset.after_row")
    return await get_dataset(shelves, caller=caller, dataset=dataset_id), True


async def get_dataset(
    shelves: Shelves, *, caller: Caller, dataset: str, committed: bool = True
) -> Dataset:
    """Return a dataset by name, name@revision or id.

    Raises:
        DatasetNotFound: the project has none.
    """
    reference = Reference.parse(dataset, noun="ds", field="dataset")
    async with shelves.db.connection() as conn:
        found = await entries.find_dataset(conn, caller.tenant, caller.project, reference)
    if found is None or (committed and not found.is_committed):
        raise DatasetNotFound(dataset)
    return found


async def list_datasets(
    shelves: Shelves, *, caller: Caller, text: str, after: tuple[str, str], limit: int
) -> list[Dataset]:
    """Return committed datasets by name."""
    async with shelves.db.connection() as conn:
        return await entries.datasets_named(conn, caller.tenant, caller.project, text, after, limit)


async def rows_file(shelves: Shelves, dataset: Dataset) -> Path:
    """Return a local copy of the rows as uploaded."""
    name = f"dataset-{dataset.dataset_id}"
    file = replace(dataset.file, name=FILE_NAME)
    return await shelves.cache.folder(name, {dataset.key: file}) / FILE_NAME


async def forget_dataset(shelves: Shelves, dataset: Dataset) -> None:
    """Remove an upload that came to nothing, unless it was committed meanwhile."""
    # The object goes while the row is locked: a commit that comes now waits and finds nothing.
    async with shelves.db.transaction() as conn:
        if await entries.forget_dataset(conn, dataset):
            await shelves.objects.delete([dataset.key])
            await shelves.cache.forget(f"dataset-{dataset.dataset_id}")


def look_at_lines(file: BinaryIO, *, line_bytes_max: int = LINE_BYTES_MAX) -> Report:
    """Look at every line of a file, one at a time."""
    report = Report()
    number = 0
    while raw := file.readline(line_bytes_max + 1):
        number += 1
        try:
            if len(raw.rstrip(b"\r\n")) > line_bytes_max:
                raise InvalidArgument(f"is longer than {line_bytes_max} bytes; split the row")
            line = _text(raw, number)
            if line:
                report.add_row(read_row(line, number=number), line=number)
        except InvalidArgument as error:
            report.add_unreadable(error, line=number)
        # The rest of an endless line is skipped, not read as further rows.
        while not raw.endswith(b"\n") and (raw := file.readline(line_bytes_max)):
            continue
    return report


def _report_on(path: Path) -> Report:
    with path.open("rb") as file:
        return look_at_lines(file)


def _text(raw: bytes, number: int) -> str:
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"is not UTF-8 at byte {error.start}; save it as UTF-8") from None
