"""Validation of what arrived: files are put together and verified, then every row is looked at."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from lehr import faults
from lehr.events import outbox
from lehr.events.catalog import DatasetAdded, ModelAdded
from lehr.objects import Digest, ObjectDiffers, ObjectNotFound
from services.catalog.domain.entries import Dataset, Entry, EntryState, File, Model, RowProblem
from services.catalog.domain.errors import ContentChanged
from services.catalog.domain.parts import parts_of
from services.catalog.examination.examine import Examination, examine
from services.catalog.formats.source import SourceFile
from services.catalog.handlers.claimed import Work
from services.catalog.handlers.models import examined
from services.catalog.handlers.shelves import Shelves, remove_objects
from services.catalog.storage import entries


class UploadDiffers(Exception):  # noqa: N818 - as all that is refused.
    """A file that arrived is not the one that was announced."""

    def __init__(self, file: File, why: str) -> None:
        super().__init__(file.name, why)
        self.file = file
        self.why = why


async def validate(shelves: Shelves, entry: Entry, work: Work) -> None:
    """Make an entry ready; refuse a dataset with its report, if that says so.

    Raises:
        ModelRefused: the files are no model that is safe to use.
        ClaimLost: another worker has it, or it was deleted; nothing visible was changed.
        UploadDiffers: what arrived is not what was announced.
        PlatformError: it cannot be decided now, or is refused for another reason than its rows.
    """
    if isinstance(entry, Dataset):
        entry, is_accepted = await _looked_at(shelves, entry, work)
        if not is_accepted:
            await refuse(shelves, entry, work)
            return
    elif isinstance(entry, Model):
        await _assembled(shelves, entry, work, None)
        await faults.hit("catalog.validate.assembled")
        entry = await examined(shelves, entry)
    await faults.hit("catalog.validate.before_commit")
    async with shelves.db.transaction() as conn:
        await entries.end_work(conn, entry, work.worker, EntryState.READY)
        await outbox.add(conn, _added(entry), sequence=1, source="catalog")
    await faults.hit(f"catalog.commit_{entry.noun}.after_row")
    await remove_objects(shelves, [entry.uploads_prefix])


async def _looked_at(shelves: Shelves, dataset: Dataset, work: Work) -> tuple[Dataset, bool]:
    """Return a dataset with its report, and whether it can be used; then what it needs is kept."""
    async with _folder(shelves) as folder:
        files = await _assembled(shelves, dataset, work, folder / "files")
        await faults.hit("catalog.validate.assembled")
        out_dir = folder / "out"
        out_dir.mkdir()
        found = await _examined(shelves, dataset, work, files, out_dir)
        checked = _with_report(dataset, found)
        if found.is_accepted:
            for file in (checked.rows_file, checked.images_file, checked.keys_file):
                if file is not None:
                    work.tell()
                    await shelves.objects.put_file(checked.written_key(file), out_dir / file.name)
    return checked, found.is_accepted


async def refuse(shelves: Shelves, entry: Entry, work: Work, refusal: str = "") -> None:
    """Refuse an entry with its report, or for a reason of its own; its bytes go.

    Raises:
        ClaimLost: it is no longer this worker's to refuse.
    """
    if isinstance(entry, Dataset) and refusal:
        problem = RowProblem(
            reason="NOT_USABLE", description=refusal, row_count=0, lines=(), is_error=True
        )
        entry = replace(entry, problems=(problem,))
    await _move(shelves, entry, work, EntryState.REFUSED, refusal)
    await remove_objects(shelves, [entry.uploads_prefix, entry.prefix])


async def await_again(shelves: Shelves, entry: Entry, work: Work, wrong: UploadDiffers) -> None:
    """Go back to an upload of which a file is not what was announced; it must be sent again.

    Raises:
        ClaimLost: it is no longer this worker's.
    """
    # The parts go first: what is seen uploading again must not look complete.
    at = entry.files.index(wrong.file)
    await remove_objects(shelves, [f"{entry.uploads_prefix}{at}/"])
    await _move(shelves, entry, work, EntryState.UPLOADING, f"{wrong.file.name} {wrong.why}")


async def _move(
    shelves: Shelves, entry: Entry, work: Work, state: EntryState, refusal: str
) -> None:
    async with shelves.db.transaction() as conn:
        await entries.end_work(conn, entry, work.worker, state, refusal=refusal)


async def _assembled(
    shelves: Shelves, entry: Entry, work: Work, folder: Path | None
) -> list[SourceFile]:
    """Put the files of an entry where they stay, verified; copy them into a folder if one is named.

    Imported files lie there already.
    """
    if folder is not None:
        await asyncio.to_thread(folder.mkdir)
    work.tell(done_bytes=0, total_bytes=entry.size_bytes)
    found = []
    for file in entry.files:
        path = None if folder is None else folder / file.name
        if entry.source.is_uploaded:
            await _join(shelves, entry, file, work, path)
        else:
            await _fetch(shelves, entry, file, work, path)
        if path is not None:
            found.append(SourceFile(name=file.name, path=path))
    return found


async def _join(shelves: Shelves, entry: Entry, file: File, work: Work, path: Path | None) -> None:
    parts = [part.key for part in parts_of(entry, file, shelves.part_bytes)]
    try:
        await shelves.objects.put_joined(
            entry.key(file.name),
            parts,
            expected=Digest(file.sha256, file.size_bytes),
            copy_to=path,
            progress=work.went_through,
        )
    except ObjectNotFound:
        raise UploadDiffers(file, "has parts that have gone") from None
    except ObjectDiffers as error:
        raise UploadDiffers(file, error.why) from None


async def _fetch(shelves: Shelves, entry: Entry, file: File, work: Work, path: Path | None) -> None:
    key = entry.key(file.name)
    if path is None:
        digest = await shelves.objects.sha256(key)
    else:
        digest = await shelves.objects.get_file(key, path)
    if digest.sha256 != file.sha256:
        raise ContentChanged(file.name)
    work.went_through(file.size_bytes)


async def _examined(
    shelves: Shelves, dataset: Dataset, work: Work, files: list[SourceFile], out_dir: Path
) -> Examination:
    work.tell(done_bytes=0, total_bytes=dataset.size_bytes, row_count=0)

    def tell(done_bytes: int, row_count: int) -> None:
        work.tell(done_bytes=done_bytes, row_count=row_count)

    return await asyncio.to_thread(
        examine,
        files,
        columns=dataset.columns,
        out_dir=out_dir,
        processes=shelves.processes,
        progress=tell,
    )


def _with_report(dataset: Dataset, found: Examination) -> Dataset:
    return replace(
        dataset,
        row_kind=found.row_kind,
        row_count=found.row_count,
        distinct_count=found.distinct_count,
        image_row_count=found.image_row_count,
        layouts=found.layouts,
        problems=found.problems,
        row_files=found.files,
        rows_file=found.rows_file,
        images_file=found.images_file,
        keys_file=found.keys_file,
    )


def _added(entry: Entry) -> DatasetAdded | ModelAdded:
    told = {"tenant": entry.tenant, "name": entry.name, "revision": entry.revision}
    if isinstance(entry, Dataset):
        return DatasetAdded(dataset_id=entry.dataset_id, row_count=entry.row_count, **told)
    return ModelAdded(model_id=entry.entry_id, **told)


@asynccontextmanager
async def _folder(shelves: Shelves) -> AsyncIterator[Path]:
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=shelves.scratch, prefix="work-"))
    try:
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
