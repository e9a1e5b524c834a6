"""gRPC in: message -> handler -> message."""

import base64
import json
from typing import Any, Literal

from pydantic import ValidationError

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1 import catalog_pb2_grpc
from lehr.api.common.v1.common_pb2 import Page
from lehr.errors import InvalidArgument
from lehr.rpc.auth import Caller, caller, tenant_of_caller
from lehr.training.spec import JobSpec
from services.catalog import messages
from services.catalog.handlers import datasets, models
from services.catalog.handlers.training import Tokens
from services.catalog.handlers.uploads import Link, Shelves

#: Which services may call what; everything else is for the gateway.
POLICY = {
    "ResolveTraining": frozenset({"scheduler"}),
    "DownloadFiles": frozenset({"gateway", "trainer_runner"}),
}

PAGE_SIZE = 50
PAGE_SIZE_MAX = 500


class Servicer(catalog_pb2_grpc.CatalogServiceServicer):
    """Translates and nothing else."""

    def __init__(self, shelves: Shelves, tokens: Tokens) -> None:
        self._shelves = shelves
        self._tokens = tokens

    async def AddModel(self, request: pb.AddModelRequest, context: Any) -> pb.AddModelResponse:
        model, links = await models.add_model(
            self._shelves,
            caller=_caller(),
            name=request.name,
            files=[messages.file_from(file) for file in request.files],
            license_text=request.license,
        )
        return pb.AddModelResponse(
            model_id=model.model_id, files=messages.links(links), is_committed=model.is_committed
        )

    async def CommitModel(
        self, request: pb.CommitModelRequest, context: Any
    ) -> pb.CommitModelResponse:
        model = await models.commit_model(
            self._shelves, caller=_caller(), model_id=request.model_id
        )
        return pb.CommitModelResponse(model=messages.model(model))

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        model = await models.get_model(self._shelves, caller=_caller(), model=request.model)
        return pb.GetModelResponse(model=messages.model(model))

    async def SearchModels(
        self, request: pb.SearchModelsRequest, context: Any
    ) -> pb.SearchModelsResponse:
        limit = _page_size(request.page)
        found = await models.search_models(
            self._shelves,
            caller=_caller(),
            text=_contained(request.name_contains),
            after=_after(request.page),
            limit=limit + 1,
        )
        page = found[:limit]
        token = _token(page[-1].name, page[-1].model_id) if len(found) > limit else ""
        return pb.SearchModelsResponse(
            models=[messages.model(one) for one in page], next_page_token=token
        )

    async def AddDataset(
        self, request: pb.AddDatasetRequest, context: Any
    ) -> pb.AddDatasetResponse:
        dataset, link = await datasets.add_dataset(
            self._shelves,
            caller=_caller(),
            name=request.name,
            file=messages.file_from(request.file),
        )
        return pb.AddDatasetResponse(
            dataset_id=dataset.dataset_id,
            file=messages.file_link(link.file, link.url),
            is_committed=dataset.is_committed,
        )

    async def CommitDataset(
        self, request: pb.CommitDatasetRequest, context: Any
    ) -> pb.CommitDatasetResponse:
        dataset, is_accepted = await datasets.commit_dataset(
            self._shelves, caller=_caller(), dataset_id=request.dataset_id
        )
        return pb.CommitDatasetResponse(dataset=messages.dataset(dataset), is_accepted=is_accepted)

    async def InspectDataset(
        self, request: pb.InspectDatasetRequest, context: Any
    ) -> pb.InspectDatasetResponse:
        who = _caller()
        dataset = await datasets.get_dataset(self._shelves, caller=who, dataset=request.dataset)
        answer = pb.InspectDatasetResponse(dataset=messages.dataset(dataset))
        if request.model:
            lengths, advice = await self._tokens.recommend(
                caller=who, dataset=dataset.dataset_id, model=request.model
            )
            answer.lengths.CopyFrom(messages.length_facts(lengths, advice))
        return answer

    async def ListDatasets(
        self, request: pb.ListDatasetsRequest, context: Any
    ) -> pb.ListDatasetsResponse:
        limit = _page_size(request.page)
        found = await datasets.list_datasets(
            self._shelves,
            caller=_caller(),
            text=_contained(request.name_contains),
            after=_after(request.page),
            limit=limit + 1,
        )
        page = found[:limit]
        token = _token(page[-1].name, page[-1].dataset_id) if len(found) > limit else ""
        return pb.ListDatasetsResponse(
            datasets=[messages.dataset(one) for one in page], next_page_token=token
        )

    async def PreviewSamples(
        self, request: pb.PreviewSamplesRequest, context: Any
    ) -> pb.PreviewSamplesResponse:
        found = await self._tokens.preview(
            caller=_caller(),
            dataset=request.dataset,
            model=request.model,
            lines=tuple(request.lines),
            max_length=request.max_length,
            overlong=_overlong(request.overlong),
        )
        return pb.PreviewSamplesResponse(samples=[messages.preview(one) for one in found])

    async def Recommend(self, request: pb.RecommendRequest, context: Any) -> pb.RecommendResponse:
        lengths, advice = await self._tokens.recommend(
            caller=_caller(), dataset=request.dataset, model=request.model
        )
        limit = request.max_length or advice.max_length
        return pb.RecommendResponse(
            lengths=messages.length_facts(lengths, advice),
            overlong_count=sum(length > limit for length in lengths),
        )

    async def DownloadFiles(
        self, request: pb.DownloadFilesRequest, context: Any
    ) -> pb.DownloadFilesResponse:
        who, sign = _caller(), self._shelves.objects.presign_get
        lifetime = self._shelves.link_lifetime
        if request.WhichOneof("which") == "model":
            model = await models.get_model(self._shelves, caller=who, model=request.model)
            found = [
                Link(file=file, url=sign(model.key(file.name), lifetime)) for file in model.files
            ]
            revision = model.revision
        else:
            dataset = await datasets.get_dataset(self._shelves, caller=who, dataset=request.dataset)
            found = [Link(file=dataset.file, url=sign(dataset.key, lifetime))]
            revision = dataset.revision
        return pb.DownloadFilesResponse(files=messages.links(found), revision=revision)

    async def ResolveTraining(
        self, request: pb.ResolveTrainingRequest, context: Any
    ) -> pb.ResolveTrainingResponse:
        try:
            spec = JobSpec.model_validate_json(request.spec_json)
        except ValidationError as error:
            raise InvalidArgument(f"spec_json is no job: {error.error_count()} mistakes") from None
        return messages.resolved(await self._tokens.resolve(caller=_caller(), spec=spec))


def _caller() -> Caller:
    tenant_of_caller()
    return caller()


def _page_size(page: Page) -> int:
    return min(page.page_size or PAGE_SIZE, PAGE_SIZE_MAX)


def _token(name: str, entry_id: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([name, entry_id]).encode()).decode()


def _after(page: Page) -> tuple[str, str]:
    if not page.page_token:
        return "", ""
    try:
        name, entry_id = json.loads(base64.urlsafe_b64decode(page.page_token))
        if "\0" in f"{name}{entry_id}":
            raise ValueError("no name holds it")
        return str(name), str(entry_id)
    except (ValueError, TypeError, RecursionError):
        raise InvalidArgument("page_token is none of ours; take next_page_token") from None


def _contained(text: str) -> str:
    if "\0" in text:
        raise InvalidArgument("name_contains holds a NUL, which no name does")
    return text


def _overlong(word: str) -> Literal["truncate", "drop"]:
    if word in ("", "truncate"):
        return "truncate"
    if word == "drop":
        return "drop"
    raise InvalidArgument(f"overlong is {word!r}; use truncate or drop")
