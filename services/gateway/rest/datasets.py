"""Datasets: upload in parts, look, commit, delete, download."""

from typing import Literal

from fastapi import Request
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.errors import InvalidArgument
from services.gateway.rest.catalog import TheCatalog
from services.gateway.rest.entries import (
    COMMIT_SECONDS,
    Deleted,
    Entry,
    EntryList,
    Listed,
    Number,
    PartTaken,
    ToUpload,
    Upload,
    plain,
    take_part,
    to_file,
)
from services.gateway.rest.routes import routes

NOUN = "ds"

router = routes("/v1/lehr/datasets", tag="datasets")


class SeveralFiles(InvalidArgument):
    """The dataset has several files, and none was named."""

    reason = "SEVERAL_FILES"


class DatasetToUpload(ToUpload):
    """A dataset before its bytes."""

    columns: dict[str, str] = Field(default_factory=dict)
    """Canonical field to column; empty to recognise the layout row by row."""


class RowProblem(BaseModel):
    """One kind of problem in the rows."""

    reason: str
    """Stable word, for example ROW_INVALID."""
    description: str
    row_count: int
    lines: list[int]
    """Line numbers of the first 20, from 1."""
    is_error: bool
    """The dataset is refused because of it."""
    file: str
    """That the lines are counted in; empty where there is one file."""


class Dataset(Entry):
    """A dataset and what was found in its rows."""

    object: Literal["lehr.dataset"] = "lehr.dataset"
    row_kind: str
    row_count: int
    distinct_count: int
    image_row_count: int
    layouts: dict[str, int]
    """Recognised layouts, and rows of each."""
    columns: dict[str, str]
    problems: list[RowProblem]


class DatasetList(EntryList):
    """A page of datasets."""

    data: list[Dataset]


@router.post("")
async def add(wanted: DatasetToUpload, catalog: TheCatalog) -> Upload:
    """Begin an upload, or go on with it: the same content is the same upload."""
    answer = await catalog.ask(catalog.stub.AddDataset, pb.AddDatasetRequest(**wanted.fields()))
    return Upload.of(answer.dataset_id, answer.uploads, is_committed=answer.is_committed)


@router.get("")
async def page(listing: Listed, catalog: TheCatalog) -> DatasetList:
    """Answer datasets that can be used."""
    request = pb.ListDatasetsRequest(name_contains=listing.name_contains, page=listing.page())
    answer = await catalog.ask(catalog.stub.ListDatasets, request)
    return DatasetList(
        data=[_dataset(one) for one in answer.datasets],
        **EntryList.around(answer.next_page_token),
    )


@router.get("/{dataset}")
async def get(dataset: str, catalog: TheCatalog) -> Dataset:
    """Answer one dataset by id, name or name@revision, with its state and report."""
    request = pb.InspectDatasetRequest(dataset=dataset)
    return _dataset((await catalog.ask(catalog.stub.InspectDataset, request)).dataset)


@router.put("/{dataset_id}/files/{file}/parts/{number}")
async def put_part(
    request: Request, dataset_id: str, file: str, number: Number, catalog: TheCatalog
) -> PartTaken:
    """Take one part of a file; the body is its bytes and nothing else."""
    return await take_part(
        request, catalog, entry_id=dataset_id, noun=NOUN, file=file, number=number
    )


@router.post("/{dataset_id}/commit")
async def commit(dataset_id: str, catalog: TheCatalog) -> Dataset:
    """Have all rows checked, and wait some seconds; ask until it is READY or REFUSED."""
    request = pb.CommitDatasetRequest(dataset_id=dataset_id)
    answer = await catalog.ask(catalog.stub.CommitDataset, request, seconds=COMMIT_SECONDS)
    return _dataset(answer.dataset)


@router.delete("/{dataset_id}")
async def delete(dataset_id: str, catalog: TheCatalog) -> Deleted:
    """Remove a dataset and its bytes."""
    await catalog.ask(catalog.stub.DeleteDataset, pb.DeleteDatasetRequest(dataset_id=dataset_id))
    return Deleted(id=dataset_id, object="lehr.dataset")


@router.get("/{dataset}/content", status_code=307, response_class=RedirectResponse)
async def content(dataset: str, catalog: TheCatalog) -> RedirectResponse:
    """Send on to the bytes of a dataset of one file, as they were uploaded."""
    answer = await catalog.ask(catalog.stub.DownloadFiles, pb.DownloadFilesRequest(dataset=dataset))
    if len(answer.files) > 1:
        raise SeveralFiles(
            f"it has {len(answer.files)} files; ask for files/NAME/content of one",
            file_count=len(answer.files),
        )
    return to_file(answer.files, answer.files[0].name)


@router.get("/{dataset}/files/{file}/content", status_code=307, response_class=RedirectResponse)
async def file_content(dataset: str, file: str, catalog: TheCatalog) -> RedirectResponse:
    """Send on to the bytes of one file, as they were uploaded."""
    request = pb.DownloadFilesRequest(dataset=dataset)
    return to_file((await catalog.ask(catalog.stub.DownloadFiles, request)).files, file)


def _dataset(message: pb.Dataset) -> Dataset:
    return Dataset.model_validate(plain(message))
