"""Datasets and models: upload, look at, list."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypedDict, Unpack

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1 import catalog_pb2_grpc
from lehr.api.common.v1.common_pb2 import FileLink, Page
from lehr.client import packing, transfer, uploading
from lehr.client.checkpoints import Checkpoints
from lehr.client.connection import LONG_CALL_SECONDS, Connection
from lehr.errors import FailedPrecondition, InvalidArgument


class ModelRefused(InvalidArgument):
    """The files are no model that is safe to use."""

    reason = "MODEL_REFUSED"


class CheckpointIsAdapter(FailedPrecondition):
    """A checkpoint holds what was trained beside a model, not the model."""

    reason = "CHECKPOINT_IS_ADAPTER"


class UploadOptions(TypedDict, total=False):
    """What may be said of an upload."""

    license: str
    """SPDX id or text; empty means unknown for models, and the caller's own for data."""
    acknowledge_license: bool
    """The caller may use what has an unknown or non-commercial licence, and answers for it."""
    origin: str
    """Where it comes from, in the caller's words."""
    through_gateway: bool
    """Send the bytes through the gateway, where the object store cannot be reached."""


class DatasetOptions(UploadOptions, total=False):
    """What may be said of the upload of a dataset."""

    columns: Mapping[str, str]
    """Canonical field to column; empty to recognise the layout row by row."""


class PreviewOptions(TypedDict, total=False):
    """How rows are shown."""

    max_length: int
    """Tokens of a sample; 0 for no limit."""
    overlong: str
    """truncate (keeps the last tokens) or drop."""
    chat_template: str
    """A bundled template in place of the model's own."""
    file: str
    """File that the lines are counted in; empty for the first."""


class Datasets:
    """Datasets of the key's project."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = catalog_pb2_grpc.CatalogServiceStub(connection.channel)

    async def upload(
        self,
        path: Path | Sequence[Path],
        *,
        name: str,
        progress: transfer.Progress | None = None,
        checking: Callable[[pb.Dataset], None] | None = None,
        **options: Unpack[DatasetOptions],
    ) -> pb.CommitDatasetResponse:
        """Upload a file, several, or a folder (as one zip); every row is checked.

        An upload that was interrupted goes on when the same is uploaded again. The answer's
        ``is_accepted`` says whether the dataset can be used, and its ``problems`` what was found
        where. ``checking`` is told how far the check is.

        Raises:
            InvalidArgument: the files cannot be a dataset, or somebody must answer for the licence.
            TransferFailed: the object store did not take the files; upload them again to go on.
        """
        through_gateway = options.get("through_gateway", False)
        with ExitStack() as packed:
            # A folder of gigabytes takes its time to pack.
            paths = await asyncio.to_thread(packed.enter_context, packing.dataset_files(path))
            request = pb.AddDatasetRequest(
                name=name,
                files=await transfer.described(paths),
                columns=options.get("columns", {}),
                **_terms(options),
            )
            added = await uploading.send(
                self._connection,
                paths,
                lambda: self._connection.call(self._stub.AddDataset, request),
                entry_id=lambda answer: answer.dataset_id,
                through_gateway=through_gateway,
                progress=progress,
            )
        found = await self.settled(added.dataset_id, checking=checking)
        return pb.CommitDatasetResponse(
            dataset=found, is_accepted=found.state == pb.ENTRY_STATE_READY
        )

    async def settled(
        self, dataset_id: str, *, checking: Callable[[pb.Dataset], None] | None = None
    ) -> pb.Dataset:
        """Wait until a dataset that was uploaded or is imported is ready or refused."""

        async def commit() -> pb.Dataset:
            request = pb.CommitDatasetRequest(dataset_id=dataset_id)
            return (await self._connection.call(self._stub.CommitDataset, request)).dataset

        async def look() -> pb.Dataset:
            return (await self.inspect(dataset_id)).dataset

        return await uploading.settle(commit, look, checking)

    async def delete(self, dataset: str) -> str:
        """Delete a dataset by name, ``name@revision`` or id, with its bytes; return its id.

        An id that is not there any more is no error.
        """
        dataset_id = dataset
        if not dataset.startswith("ds_"):
            dataset_id = (await self.inspect(dataset)).dataset.dataset_id
        request = pb.DeleteDatasetRequest(dataset_id=dataset_id)
        await self._connection.call(self._stub.DeleteDataset, request)
        return dataset_id

    async def download(
        self, dataset: str, folder: Path, *, progress: transfer.Progress | None = None
    ) -> Sequence[FileLink]:
        """Download the files of a dataset as they were uploaded; return what they are."""
        request = pb.DownloadFilesRequest(dataset=dataset)
        answer = await self._connection.call(self._stub.DownloadFiles, request)
        await transfer.download(answer.files, folder, progress=progress)
        return answer.files

    async def inspect(
        self, dataset: str, *, model: str = "", chat_template: str = ""
    ) -> pb.InspectDatasetResponse:
        """Return a dataset with its report and, for a model, its token lengths.

        By id also one that is not ready, with how far it is.
        """
        request = pb.InspectDatasetRequest(
            dataset=dataset, model=model, chat_template=chat_template
        )
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
        **options: Unpack[PreviewOptions],
    ) -> Sequence[pb.SamplePreview]:
        """Return rows exactly as they are trained: text, tokens, and which are trained."""
        request = pb.PreviewSamplesRequest(dataset=dataset, model=model, lines=lines, **options)
        answer = await self._connection.call(
            self._stub.PreviewSamples, request, seconds=LONG_CALL_SECONDS
        )
        return answer.samples

    async def recommend(
        self, dataset: str, *, model: str, max_length: int = 0, chat_template: str = ""
    ) -> pb.RecommendResponse:
        """Return the sequence length that covers 95 % of the rows, and what another would cut."""
        request = pb.RecommendRequest(
            dataset=dataset, model=model, max_length=max_length, chat_template=chat_template
        )
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
        progress: transfer.Progress | None = None,
        checking: Callable[[pb.Model], None] | None = None,
        **options: Unpack[UploadOptions],
    ) -> pb.Model:
        """Upload a model folder (config, tokenizer, safetensors) and return it with its revision.

        An upload that was interrupted goes on when the same is added again.

        Raises:
            InvalidArgument: the folder is empty, the files are not a model that is safe to use, or
                somebody must answer for the licence.
            TransferFailed: the object store did not take the files; add them again to go on.
        """
        paths = await asyncio.to_thread(packing.model_files, folder)
        request = pb.AddModelRequest(
            name=name, files=await transfer.described(paths), **_terms(options)
        )
        added = await uploading.send(
            self._connection,
            paths,
            lambda: self._connection.call(self._stub.AddModel, request),
            entry_id=lambda answer: answer.model_id,
            through_gateway=options.get("through_gateway", False),
            progress=progress,
        )
        return await self.settled(added.model_id, checking=checking)

    async def add_checkpoint(
        self,
        checkpoint: str,
        *,
        name: str,
        progress: transfer.Progress | None = None,
        checking: Callable[[pb.Model], None] | None = None,
        **options: Unpack[UploadOptions],
    ) -> pb.Model:
        """Make a checkpoint (an id, ``<job>:best`` or ``<job>:final``) a model to train on.

        Its files go through this machine, without the state of the training.

        Raises:
            CheckpointIsAdapter: it holds no whole model.
            InvalidArgument, TransferFailed: as for ``add``.
        """
        checkpoints = Checkpoints(self._connection)
        found = await checkpoints.find(checkpoint)
        if not any(file.name == "config.json" for file in found.files):
            raise CheckpointIsAdapter(
                f"{found.checkpoint_id} holds an adapter and no whole model; make a model of a"
                " checkpoint of full fine-tuning, or merge the adapter into its base first",
                checkpoint_id=found.checkpoint_id,
            )
        options["origin"] = found.checkpoint_id
        with tempfile.TemporaryDirectory(prefix="lehr-checkpoint-") as place:
            await checkpoints.download(found.checkpoint_id, Path(place))
            return await self.add(
                Path(place), name=name, progress=progress, checking=checking, **options
            )

    async def settled(
        self, model_id: str, *, checking: Callable[[pb.Model], None] | None = None
    ) -> pb.Model:
        """Wait until a model that was uploaded or is imported is ready.

        Raises:
            ModelRefused: it is no model that is safe to use.
        """

        async def commit() -> pb.Model:
            request = pb.CommitModelRequest(model_id=model_id)
            return (await self._connection.call(self._stub.CommitModel, request)).model

        found = await uploading.settle(commit, lambda: self.get(model_id), checking)
        if found.state == pb.ENTRY_STATE_REFUSED:
            raise ModelRefused(found.refusal, model=found.name)
        return found

    async def delete(self, model: str) -> str:
        """Delete a model by name, ``name@revision`` or id, with its bytes; return its id.

        An id that is not there any more is no error.
        """
        model_id = model if model.startswith("model_") else (await self.get(model)).model_id
        request = pb.DeleteModelRequest(model_id=model_id)
        await self._connection.call(self._stub.DeleteModel, request)
        return model_id

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


def _terms(options: UploadOptions | DatasetOptions) -> dict[str, Any]:
    return {
        "license": options.get("license", ""),
        "acknowledge_license": options.get("acknowledge_license", False),
        "origin": options.get("origin", ""),
    }
