"""Use cases of datasets."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lehr.rpc.auth import Caller
from services.catalog.domain.announcing import check_columns, check_dataset_files, check_origin
from services.catalog.domain.entries import Dataset, File, Source, dataset_revision
from services.catalog.domain.errors import DatasetNotFound, RowsForServicesOnly
from services.catalog.domain.licenses import OWN, Terms
from services.catalog.handlers.entries import announced, register
from services.catalog.handlers.shelves import Link, Shelves, links
from services.catalog.handlers.uploads import Missing, signed


async def add_dataset(
    shelves: Shelves,
    *,
    caller: Caller,
    name: str,
    files: Sequence[File],
    columns: Mapping[str, str],
    terms: Terms,
) -> tuple[Dataset, Missing]:
    """Register a dataset and return where the missing parts of its files go.

    Raises:
        UploadRefused: name, size or kind of a file, the column map or the licence is not taken.
        LicenseNotAcknowledged: nobody answers for the licence.
    """
    checked, mapped = check_dataset_files(files), check_columns(columns)
    key = dataset_revision(checked, mapped)
    wanted = Dataset(
        **announced(Dataset, caller, name, key=key, terms=terms, empty_means=OWN),
        files=checked,
        columns=mapped,
        source=Source(origin=check_origin(terms.origin)),
    )
    found = await register(shelves, wanted)
    return found, await signed(shelves, found)


async def rows_file(shelves: Shelves, dataset: Dataset) -> Path:
    """Return a local copy of the canonical rows of a ready dataset."""
    return await _written(shelves, dataset, dataset.rows_file)


async def images_file(shelves: Shelves, dataset: Dataset) -> Path | None:
    """Return a local copy of the archive of images; None where the rows have none."""
    if dataset.images_file is None:
        return None
    return await _written(shelves, dataset, dataset.images_file)


async def keys_file(shelves: Shelves, dataset: Dataset) -> Path:
    """Return a local copy of the digests of rows and prompts."""
    return await _written(shelves, dataset, dataset.keys_file)


def canonical_links(shelves: Shelves, dataset: Dataset, *, caller: Caller) -> list[Link]:
    """Return signed addresses of the canonical rows and their images.

    Raises:
        RowsForServicesOnly: somebody from outside asks for them.
    """
    if caller.service == "gateway":
        raise RowsForServicesOnly
    written = [one for one in (dataset.rows_file, dataset.images_file) if one is not None]
    return links(shelves, ((dataset.written_key(one), one) for one in written))


async def _written(shelves: Shelves, dataset: Dataset, file: File | None) -> Path:
    if file is None:
        raise DatasetNotFound(dataset.dataset_id)
    name = f"dataset-{dataset.dataset_id}-{file.sha256[:16]}"
    return await shelves.cache.folder(name, {dataset.written_key(file): file}) / file.name
