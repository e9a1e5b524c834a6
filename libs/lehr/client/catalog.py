"""Datasets and models: upload, look at, list."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1 import catalog_pb2_grpc
from lehr.api.common.v1.common_pb2 import Page
from lehr.client import transfer
from lehr.client.connection import LONG_CALL_SECONDS, Connection
from lehr.errors import InvalidArgument


class Datasets:
    """Datasets of the key's project."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = catalog_pb2_grpc.CatalogServiceStub(connection.channel)

    async def upload(
        self, path: Path, *, name: str, progress: transfer.Progress | None = None
    ) -> pb.CommitDatasetResponse:
        """Upload a JSON lines file; every row is checked before it is accepted.

        The answer's ``is_accepted`` says so, and its dataset's ``problems`` what was found where.
        """
        file = await asyncio.to_thread(transfer.describe, path)
        request = pb.AddDatasetRequest(name=name, file=file)
        added = await self._connection.call(self._stub.AddDataset, request)
        if added.file.url:
            await transfer.upload(path, added.file, progress=progress)
        commit = pb.CommitDatasetRequest(dataset_id=added.dataset_id)
        return await self._connection.call(
            self._stub.CommitDataset, commit, seconds=LONG_CALL_SECONDS
        )

    async def inspect(self, dataset: str, *, model: str = "") -> pb.InspectDatasetResponse:
        """Return a dataset with its report and, for a model, its token lengths."""
        request = pb.InspectDatasetRequest(dataset=dataset, model=model)
        return await self._connection.call(
            self._stub.InspectDataset, request, seconds=LONG_CALL_SECONDS
        )

    async def list(self, *, name_contains: str = "") -> list[pb.Dataset]:
        """Return all datasets by name."""
        found: list[pb.Dataset] = []
        token = ""
        while True:
            request = pb.ListDatasetsRequest(
                name_contains=name_contains, page=Page(page_token=token)
            )
            answer = await self._connection.call(self._stub.ListDatasets, request)
            found.extend(answer.datasets)
            token = answer.next_page_token
            if not token:
                return found

    async def preview(
        self,
        dataset: str,
        *,
        model: str,
        lines: Sequence[int] = (),
        max_length: int = 0,
        overlong: str = "truncate",
    ) -> Sequence[pb.SamplePreview]:
        """Return rows exactly as they are trained: text, tokens, and which are trained."""
        request = pb.PreviewSamplesRequest(
            dataset=dataset, model=model, lines=lines, max_length=max_length, overlong=overlong
        )
        answer = await self._connection.call(
            self._stub.PreviewSamples, request, seconds=LONG_CALL_SECONDS
        )
        return answer.samples

    async def recommend(
        self, dataset: str, *, model: str, max_length: int = 0
    ) -> pb.RecommendResponse:
        """Return the sequence length that covers 95 % of the rows, and what another would cut."""
        request = pb.RecommendRequest(dataset=dataset, model=model, max_length=max_length)
        return await self._connection.call(self._stub.Recommend, request, seconds=LONG_CALL_SECONDS)


class Models:
    """Base models that the key may use."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = catalog_pb2_grpc.CatalogServiceStub(connection.channel)

    async def add(
        self,
        folder: Path,
        *,
        name: str,
        license: str,  # noqa: A002 - the word of model cards.
        progress: transfer.Progress | None = None,
    ) -> pb.Model:
        """Upload a model folder (config, tokenizer, safetensors) and return it with its revision.

        Raises:
            InvalidArgument: the folder is empty, or the files are not a model that is safe to use.
        """
        paths = await asyncio.to_thread(_files, folder)
        if not paths:
            raise InvalidArgument(f"{folder} holds no files; give the folder of a model")
        files = [await asyncio.to_thread(transfer.describe, path) for path in paths.values()]
        request = pb.AddModelRequest(name=name, files=files, license=license)
        added = await self._connection.call(self._stub.AddModel, request)
        for link in added.files:
            if link.url:
                await transfer.upload(paths[link.name], link, progress=progress)
        commit = pb.CommitModelRequest(model_id=added.model_id)
        answer = await self._connection.call(
            self._stub.CommitModel, commit, seconds=LONG_CALL_SECONDS
        )
        return answer.model

    async def get(self, model: str) -> pb.Model:
        """Return a model by name, ``name@revision`` or id."""
        request = pb.GetModelRequest(model=model)
        return (await self._connection.call(self._stub.GetModel, request)).model

    async def list(self, *, name_contains: str = "") -> list[pb.Model]:
        """Return all models by name."""
        found: list[pb.Model] = []
        token = ""
        while True:
            request = pb.SearchModelsRequest(
                name_contains=name_contains, page=Page(page_token=token)
            )
            answer = await self._connection.call(self._stub.SearchModels, request)
            found.extend(answer.models)
            token = answer.next_page_token
            if not token:
                return found


def _files(folder: Path) -> dict[str, Path]:
    # Hidden files, such as .gitattributes, are about the folder and not part of the model.
    return {
        path.name: path
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".")
    }
