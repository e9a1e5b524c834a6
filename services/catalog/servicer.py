"""gRPC in: message -> handler -> message."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1 import catalog_pb2_grpc
from lehr.api.catalog.v1 import hub_pb2 as hub_pb
from lehr.api.catalog.v1.upload_pb2 import UploadPartRequest, UploadPartResponse
from lehr.api.common.v1.common_pb2 import Page
from lehr.errors import InvalidArgument
from lehr.ids import parse_id
from lehr.rpc.auth import Caller, caller, tenant_of_caller
from lehr.training.spec import JobSpec
from services.catalog import messages
from services.catalog.domain.entries import Dataset, Entry, Model
from services.catalog.domain.imports import HubRepo, S3Prefix
from services.catalog.domain.licenses import Terms
from services.catalog.handlers import credentials, datasets, importing, models, uploads
from services.catalog.handlers.entries import commit, get_entry, list_entries
from services.catalog.handlers.removing import delete_entry
from services.catalog.handlers.shelves import Shelves, file_links
from services.catalog.handlers.training import PreviewRequest, Tokens
from services.catalog.handlers.waiting import in_time

#: Which services may call what; everything else is for the gateway.
POLICY = {
    "ResolveTraining": frozenset({"scheduler"}),
    "DownloadFiles": frozenset({"gateway", "trainer_runner"}),
}

E = TypeVar("E", bound=Entry)

PAGE_SIZE = 50
PAGE_SIZE_MAX = 500


class Servicer(catalog_pb2_grpc.CatalogServiceServicer):
    """Translates and nothing else."""

    def __init__(self, shelves: Shelves, tokens: Tokens) -> None:
        self._shelves = shelves
        self._tokens = tokens

    async def AddModel(self, request: pb.AddModelRequest, context: Any) -> pb.AddModelResponse:
        model, missing = await models.add_model(
            self._shelves,
            caller=_caller(),
            name=request.name,
            files=[messages.file_from(file) for file in request.files],
            terms=_terms(request),
        )
        return pb.AddModelResponse(
            model_id=model.model_id,
            is_committed=model.is_ready,
            uploads=messages.upload_files(missing),
        )

    async def CommitModel(
        self, request: pb.CommitModelRequest, context: Any
    ) -> pb.CommitModelResponse:
        model = await commit(self._shelves, Model, caller=_caller(), entry_id=request.model_id)
        return pb.CommitModelResponse(model=messages.model(model))

    async def DeleteModel(
        self, request: pb.DeleteModelRequest, context: Any
    ) -> pb.DeleteModelResponse:
        await delete_entry(self._shelves, Model, caller=_caller(), entry_id=request.model_id)
        return pb.DeleteModelResponse()

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        model = await get_entry(
            self._shelves, Model, caller=_caller(), wanted=request.model, ready=False
        )
        return pb.GetModelResponse(model=messages.model(model))

    async def SearchModels(
        self, request: pb.SearchModelsRequest, context: Any
    ) -> pb.SearchModelsResponse:
        page, token = await self._page(Model, request)
        return pb.SearchModelsResponse(
            models=[messages.model(one) for one in page], next_page_token=token
        )

    async def AddDataset(
        self, request: pb.AddDatasetRequest, context: Any
    ) -> pb.AddDatasetResponse:
        dataset, missing = await datasets.add_dataset(
            self._shelves,
            caller=_caller(),
            name=request.name,
            files=[messages.file_from(file) for file in request.files],
            columns=dict(request.columns),
            terms=_terms(request),
        )
        return pb.AddDatasetResponse(
            dataset_id=dataset.dataset_id,
            is_committed=dataset.is_ready,
            uploads=messages.upload_files(missing),
        )

    async def UploadPart(
        self, request_iterator: AsyncIterator[UploadPartRequest], context: Any
    ) -> UploadPartResponse:
        first = await anext(request_iterator, None)
        if first is None or first.WhichOneof("step") != "target":
            raise InvalidArgument("the first message of UploadPart must be the target")
        target = first.target
        kind: type[Entry] = Model if target.entry_id.startswith("model_") else Dataset
        wanted = parse_id(target.entry_id, kind.id_prefix)
        part = await uploads.take_part(
            self._shelves,
            await get_entry(self._shelves, kind, caller=_caller(), wanted=wanted, ready=False),
            (target.file_name, target.number),
            (message.chunk async for message in request_iterator),
        )
        return UploadPartResponse(size_bytes=part.size_bytes)

    async def CommitDataset(
        self, request: pb.CommitDatasetRequest, context: Any
    ) -> pb.CommitDatasetResponse:
        dataset = await commit(
            self._shelves, Dataset, caller=_caller(), entry_id=request.dataset_id
        )
        return pb.CommitDatasetResponse(
            dataset=messages.dataset(dataset), is_accepted=dataset.is_ready
        )

    async def DeleteDataset(
        self, request: pb.DeleteDatasetRequest, context: Any
    ) -> pb.DeleteDatasetResponse:
        await delete_entry(self._shelves, Dataset, caller=_caller(), entry_id=request.dataset_id)
        return pb.DeleteDatasetResponse()

    async def InspectDataset(
        self, request: pb.InspectDatasetRequest, context: Any
    ) -> pb.InspectDatasetResponse:
        who = _caller()
        dataset = await get_entry(
            self._shelves, Dataset, caller=who, wanted=request.dataset, ready=False
        )
        answer = pb.InspectDatasetResponse(dataset=messages.dataset(dataset))
        if request.model:
            counting = self._tokens.lengths(
                caller=who,
                dataset=dataset.dataset_id,
                model=request.model,
                chat_template=request.chat_template or None,
            )
            lengths = await in_time(self._shelves, counting)
            answer.lengths.CopyFrom(messages.length_facts(lengths))
        return answer

    async def ListDatasets(
        self, request: pb.ListDatasetsRequest, context: Any
    ) -> pb.ListDatasetsResponse:
        page, token = await self._page(Dataset, request)
        return pb.ListDatasetsResponse(
            datasets=[messages.dataset(one) for one in page], next_page_token=token
        )

    async def ImportDataset(
        self, request: hub_pb.ImportDatasetRequest, context: Any
    ) -> hub_pb.ImportDatasetResponse:
        dataset, commit, is_ready = await importing.import_dataset(
            self._shelves,
            caller=_caller(),
            name=request.name,
            source=_source(request),
            columns=dict(request.columns),
            terms=_import_terms(request),
        )
        return hub_pb.ImportDatasetResponse(
            dataset_id=dataset.dataset_id, commit=commit, is_committed=is_ready
        )

    async def ImportModel(
        self, request: hub_pb.ImportModelRequest, context: Any
    ) -> hub_pb.ImportModelResponse:
        model, commit, is_ready = await importing.import_model(
            self._shelves,
            caller=_caller(),
            name=request.name,
            source=_hub_repo(request.hub),
            terms=_import_terms(request),
        )
        return hub_pb.ImportModelResponse(
            model_id=model.model_id, commit=commit, is_committed=is_ready
        )

    async def SearchHub(
        self, request: hub_pb.SearchHubRequest, context: Any
    ) -> hub_pb.SearchHubResponse:
        found = await importing.search_hub(
            self._shelves,
            caller=_caller(),
            text=request.text,
            kind=request.kind,
            limit=request.limit,
            credential=request.credential,
        )
        return hub_pb.SearchHubResponse(entries=[hub_pb.HubEntry(**one) for one in found])

    async def PutCredential(
        self, request: hub_pb.PutCredentialRequest, context: Any
    ) -> hub_pb.PutCredentialResponse:
        kind, secret = _secret(request)
        await credentials.put_credential(
            self._shelves, caller=_caller(), name=request.name, kind=kind, secret=secret
        )
        return hub_pb.PutCredentialResponse()

    async def ListCredentials(
        self, request: hub_pb.ListCredentialsRequest, context: Any
    ) -> hub_pb.ListCredentialsResponse:
        found = await credentials.list_credentials(self._shelves, caller=_caller())
        return hub_pb.ListCredentialsResponse(
            credentials=[messages.credential(one) for one in found]
        )

    async def DeleteCredential(
        self, request: hub_pb.DeleteCredentialRequest, context: Any
    ) -> hub_pb.DeleteCredentialResponse:
        await credentials.delete_credential(self._shelves, caller=_caller(), name=request.name)
        return hub_pb.DeleteCredentialResponse()

    async def PreviewSamples(
        self, request: pb.PreviewSamplesRequest, context: Any
    ) -> pb.PreviewSamplesResponse:
        wanted = PreviewRequest(
            dataset=request.dataset,
            model=request.model,
            lines=tuple(request.lines),
            file=request.file,
            max_length=request.max_length,
            overlong=_overlong(request.overlong),
            chat_template=request.chat_template or None,
        )
        looking = self._tokens.preview(caller=_caller(), wanted=wanted)
        found = await in_time(self._shelves, looking)
        return pb.PreviewSamplesResponse(samples=[messages.preview(one) for one in found])

    async def Recommend(self, request: pb.RecommendRequest, context: Any) -> pb.RecommendResponse:
        counting = self._tokens.lengths(
            caller=_caller(),
            dataset=request.dataset,
            model=request.model,
            max_length=request.max_length,
            chat_template=request.chat_template or None,
        )
        lengths = await in_time(self._shelves, counting)
        return pb.RecommendResponse(
            lengths=messages.length_facts(lengths), overlong_count=lengths.drop.affected
        )

    async def DownloadFiles(
        self, request: pb.DownloadFilesRequest, context: Any
    ) -> pb.DownloadFilesResponse:
        who, shelves = _caller(), self._shelves
        which = request.WhichOneof("which")
        if which == "rows_of":
            rows = await get_entry(shelves, Dataset, caller=who, wanted=request.rows_of)
            links = datasets.canonical_links(shelves, rows, caller=who)
            links += await self._tokens.links(rows)
            return pb.DownloadFilesResponse(files=messages.links(links), revision=rows.revision)
        kind, wanted = (Model, request.model) if which == "model" else (Dataset, request.dataset)
        entry = await get_entry(shelves, kind, caller=who, wanted=wanted)
        links = file_links(shelves, entry)
        return pb.DownloadFilesResponse(files=messages.links(links), revision=entry.revision)

    async def ResolveTraining(
        self, request: pb.ResolveTrainingRequest, context: Any
    ) -> pb.ResolveTrainingResponse:
        try:
            spec = JobSpec.model_validate_json(request.spec_json)
        except ValidationError as error:
            raise InvalidArgument(f"spec_json is no job: {error.error_count()} mistakes") from None
        resolving = self._tokens.resolve(caller=_caller(), spec=spec)
        return messages.resolved(await in_time(self._shelves, resolving))

    async def _page(
        self, kind: type[E], request: pb.SearchModelsRequest | pb.ListDatasetsRequest
    ) -> tuple[list[E], str]:
        """Return a page of entries, and the token of the next one."""
        limit = _page_size(request.page)
        found = await list_entries(
            self._shelves,
            kind,
            caller=_caller(),
            text=_contained(request.name_contains),
            after=_after(request.page),
            limit=limit + 1,
        )
        page = found[:limit]
        token = _token(page[-1].name, page[-1].entry_id) if len(found) > limit else ""
        return page, token


def _terms(request: pb.AddModelRequest | pb.AddDatasetRequest) -> Terms:
    return Terms(
        license=request.license,
        acknowledges=request.acknowledge_license,
        origin=request.origin,
    )


def _import_terms(
    request: hub_pb.ImportDatasetRequest | hub_pb.ImportModelRequest,
) -> Terms:
    return Terms(license=request.license, acknowledges=request.acknowledge_license)


def _source(request: hub_pb.ImportDatasetRequest) -> HubRepo | S3Prefix:
    which = request.WhichOneof("source")
    if which == "hub":
        return _hub_repo(request.hub)
    if which == "s3":
        return S3Prefix(
            endpoint=request.s3.endpoint,
            bucket=request.s3.bucket,
            prefix=request.s3.prefix,
            region=request.s3.region,
            credential=request.s3.credential,
        )
    raise InvalidArgument("source is missing; give hub or s3")


def _hub_repo(source: hub_pb.HubSource) -> HubRepo:
    return HubRepo(
        repo_id=source.repo_id,
        revision=source.revision,
        config=source.config,
        split=source.split,
        credential=source.credential,
    )


def _secret(request: hub_pb.PutCredentialRequest) -> tuple[str, dict[str, str]]:
    which = request.WhichOneof("secret")
    if which == "hub_token":
        return "hub", {"token": request.hub_token}
    if which == "s3_keys":
        keys = request.s3_keys
        return "s3", {"access_key": keys.access_key, "secret_key": keys.secret_key}
    raise InvalidArgument("secret is missing; give hub_token or s3_keys")


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
