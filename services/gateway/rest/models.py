"""Models: upload in parts, look, commit, delete, download."""

from typing import Literal

from fastapi import Request
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict

from lehr.api.catalog.v1 import catalog_pb2 as pb
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

NOUN = "model"

router = routes("/v1/lehr/models", tag="models")


class ModelToUpload(ToUpload):
    """A model before its bytes."""


class Facts(BaseModel):
    """What config and weight headers say, without loading weights."""

    architecture: str
    dtype: str
    parameter_counts: dict[str, int]
    """By kind: embedding, attention, mlp, experts, norm, head, vision, other."""
    layer_count: int
    hidden_size: int
    intermediate_size: int
    attention_head_count: int
    key_value_head_count: int
    vocabulary_size: int
    is_tied: bool
    expert_count: int
    active_expert_count: int
    has_vision: bool
    default_target_modules: list[str]
    target_modules: list[str]
    chat_template: str
    """none, generation_marks, differential or refused: how answers are found in chats."""
    chat_template_advice: str
    quantization: str


class Model(Entry):
    """A base model."""

    model_config = ConfigDict(protected_namespaces=())

    object: Literal["lehr.model"] = "lehr.model"
    model_type: str
    parameter_count: int
    context_length: int
    """Longest sequence it was made for, in tokens."""
    facts: Facts | None = None
    refusal: str
    """Why it was refused."""


class ModelList(EntryList):
    """A page of models."""

    data: list[Model]


@router.post("")
async def add(wanted: ModelToUpload, catalog: TheCatalog) -> Upload:
    """Begin an upload, or go on with it: the same content is the same upload."""
    answer = await catalog.ask(catalog.stub.AddModel, pb.AddModelRequest(**wanted.fields()))
    return Upload.of(answer.model_id, answer.uploads, is_committed=answer.is_committed)


@router.get("")
async def page(listing: Listed, catalog: TheCatalog) -> ModelList:
    """Answer models that can be used."""
    request = pb.SearchModelsRequest(name_contains=listing.name_contains, page=listing.page())
    answer = await catalog.ask(catalog.stub.SearchModels, request)
    return ModelList(
        data=[_model(one) for one in answer.models], **EntryList.around(answer.next_page_token)
    )


@router.get("/{model}")
async def get(model: str, catalog: TheCatalog) -> Model:
    """Answer one model by id, name or name@revision, with its state and facts."""
    answer = await catalog.ask(catalog.stub.GetModel, pb.GetModelRequest(model=model))
    return _model(answer.model)


@router.put("/{model_id}/files/{file}/parts/{number}")
async def put_part(
    request: Request, model_id: str, file: str, number: Number, catalog: TheCatalog
) -> PartTaken:
    """Take one part of a file; the body is its bytes and nothing else."""
    return await take_part(request, catalog, entry_id=model_id, noun=NOUN, file=file, number=number)


@router.post("/{model_id}/commit")
async def commit(model_id: str, catalog: TheCatalog) -> Model:
    """Have the files checked, and wait some seconds; ask until it is READY or REFUSED."""
    request = pb.CommitModelRequest(model_id=model_id)
    answer = await catalog.ask(catalog.stub.CommitModel, request, seconds=COMMIT_SECONDS)
    return _model(answer.model)


@router.delete("/{model_id}")
async def delete(model_id: str, catalog: TheCatalog) -> Deleted:
    """Remove a model and its bytes."""
    await catalog.ask(catalog.stub.DeleteModel, pb.DeleteModelRequest(model_id=model_id))
    return Deleted(id=model_id, object="lehr.model")


@router.get("/{model}/files/{file}/content", status_code=307, response_class=RedirectResponse)
async def file_content(model: str, file: str, catalog: TheCatalog) -> RedirectResponse:
    """Send on to the bytes of one file, as they were uploaded."""
    request = pb.DownloadFilesRequest(model=model)
    return to_file((await catalog.ask(catalog.stub.DownloadFiles, request)).files, file)


def _model(message: pb.Model) -> Model:
    return Model.model_validate(plain(message))
