"""Use cases of datasets."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lehr.ids import derived_id
from lehr.rpc.auth import Caller
from services.catalog.domain.announcing import check_columns, check_dataset_files, check_origin
from services.catalog.domain.entries import (
    Dataset,
    File,
    Reference,
    Source,
    check_name,
    dataset_revision,
)
from services.catalog.domain.errors import DatasetNotFound, RowsForServicesOnly
from services.catalog.domain.licenses import OWN, Terms
from services.catalog.handlers.uploads import Link, Missing, Shelves, settled, signed
from services.catalog.storage import entries


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
    revision = dataset_revision(checked, mapped)
    key = f"{caller.project}/{check_name(name)}@{revision}"
    license_text, acknowledged_by = terms.recorded(empty_means=OWN, principal=caller.principal)
    wanted = Dataset(
        dataset_id=derived_id("ds", caller.tenant, key),
        tenant=caller.tenant,
        project=caller.project,
        name=name,
        revision=revision,
        files=checked,
        columns=mapped,
        license=license_text,
        source=Source(origin=check_origin(terms.origin)),
        acknowledged_by=acknowledged_by,
    )
    async with shelves.db.transaction() as conn:
        await entries.add_dataset(conn, wanted)
    dataset = await get_dataset(shelves, caller=caller, dataset=wanted.dataset_id, ready=False)
    return dataset, await signed(shelves, dataset)


async def commit_dataset(shelves: Shelves, *, caller: Caller, dataset_id: str) -> Dataset:
    """Have a dataset validated and wait some seconds for the end; twice is the same as once.

    Raises:
        DatasetNotFound: the project has no such dataset.
        UploadIncomplete: a file has not arrived as announced; it may be sent again.
    """
    found = await settled(shelves, caller=caller, entry_id=dataset_id, noun="ds")
    if not isinstance(found, Dataset):
        raise DatasetNotFound(dataset_id)
    return found


async def get_dataset(
    shelves: Shelves, *, caller: Caller, dataset: str, ready: bool = True
) -> Dataset:
    """Return a dataset by name, name@revision or id; by id in any state unless it must be ready.

    Raises:
        DatasetNotFound: the project has none.
    """
    reference = Reference.parse(dataset, noun="ds", field="dataset")
    async with shelves.db.connection() as conn:
        found = await entries.find_dataset(conn, caller.tenant, caller.project, reference)
    if found is None or (ready and not found.is_ready):
        raise DatasetNotFound(dataset)
    return found


async def list_datasets(
    shelves: Shelves, *, caller: Caller, text: str, after: tuple[str, str], limit: int
) -> list[Dataset]:
    """Return ready datasets by name."""
    async with shelves.db.connection() as conn:
        return await entries.datasets_named(conn, caller.tenant, caller.project, text, after, limit)


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


def dataset_links(
    shelves: Shelves, dataset: Dataset, *, caller: Caller, canonical: bool
) -> list[Link]:
    """Return signed addresses of what was uploaded, or of the canonical rows and images.

    Raises:
        RowsForServicesOnly: somebody from outside asks for the canonical rows.
    """
    sign, lifetime = shelves.objects.presign_get, shelves.link_lifetime
    if not canonical:
        return [Link(file=one, url=sign(dataset.key(one.name), lifetime)) for one in dataset.files]
    if caller.service == "gateway":
        raise RowsForServicesOnly
    written = [one for one in (dataset.rows_file, dataset.images_file) if one is not None]
    return [Link(file=one, url=sign(dataset.written_key(one), lifetime)) for one in written]


async def _written(shelves: Shelves, dataset: Dataset, file: File | None) -> Path:
    if file is None:
        raise DatasetNotFound(dataset.dataset_id)
    name = f"dataset-{dataset.dataset_id}-{file.sha256[:16]}"
    return await shelves.cache.folder(name, {dataset.written_key(file): file}) / file.name
