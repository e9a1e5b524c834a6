"""Use cases of models."""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lehr import faults
from lehr.errors import InvalidArgument
from lehr.events import outbox
from lehr.events.catalog import ModelAdded
from lehr.ids import derived_id
from lehr.rpc.auth import Caller
from lehr.samples.tokens import SampleTokenizer
from services.catalog.domain import weights
from services.catalog.domain.entries import (
    File,
    Model,
    Reference,
    check_model_files,
    check_name,
    model_revision,
)
from services.catalog.domain.errors import ModelNotFound, ModelRefused, UploadRefused
from services.catalog.handlers.uploads import Link, Shelves, verify
from services.catalog.storage import entries

LICENSE_CHARACTERS_MAX = 200
MODEL_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")

#: Keys of config.json with which a repository asks to run code of its own.
CODE_KEYS = ("auto_map", "custom_pipelines")


async def add_model(
    shelves: Shelves, *, caller: Caller, name: str, files: Sequence[File], license_text: str
) -> tuple[Model, list[Link]]:
    """Register a model and return where its files go; none when this revision is there.

    Raises:
        UploadRefused: names, sizes or kinds of files are not taken.
    """
    checked = check_model_files(files)
    revision = model_revision(checked)
    key = f"{caller.project}/{check_name(name)}@{revision}"
    model_id = derived_id("model", caller.tenant, key)
    wanted = Model(
        model_id=model_id,
        tenant=caller.tenant,
        project=caller.project,
        name=name,
        revision=revision,
        license=_license(license_text),
        files=checked,
    )
    async with shelves.db.transaction() as conn:
        await entries.add_model(conn, wanted)
        model = await entries.find_model(
            conn, caller.tenant, caller.project, Reference(entry_id=model_id)
        )
    if model is None:
        raise ModelNotFound(model_id)
    if model.is_committed:
        return model, []
    sign = shelves.objects.presign_put
    links = [
        Link(file=file, url=sign(model.key(file.name), shelves.link_lifetime)) for file in checked
    ]
    return model, links


async def commit_model(shelves: Shelves, *, caller: Caller, model_id: str) -> Model:
    """Verify a model's files and make it visible; twice is the same as once.

    Raises:
        ModelNotFound: the project has no such model.
        UploadIncomplete: a file has not arrived as announced; it may be sent again.
        ModelRefused: the files are no safe model; everything of it is removed.
    """
    model = await get_model(shelves, caller=caller, model=model_id, committed=False)
    if model.is_committed:
        return model
    await verify(shelves.objects, {model.key(file.name): file for file in model.files})
    try:
        found = await _examined(shelves, model)
    except InvalidArgument:
        await forget_model(shelves, model)
        raise
    async with shelves.db.transaction() as conn:
        if await entries.commit_model(conn, found):
            event = ModelAdded(
                tenant=model.tenant, model_id=model_id, name=model.name, revision=model.revision
            )
            await outbox.add(conn, event, sequence=1, source="catalog")
    await faults.hit("catalog.commit_model.after_row")
    return await get_model(shelves, caller=caller, model=model_id)


async def get_model(
    shelves: Shelves, *, caller: Caller, model: str, committed: bool = True
) -> Model:
    """Return a model by name, name@revision or id.

    Raises:
        ModelNotFound: the project has none.
    """
    reference = Reference.parse(model, noun="model", field="model")
    async with shelves.db.connection() as conn:
        found = await entries.find_model(conn, caller.tenant, caller.project, reference)
    if found is None or (committed and not found.is_committed):
        raise ModelNotFound(model)
    return found


async def search_models(
    shelves: Shelves, *, caller: Caller, text: str, after: tuple[str, str], limit: int
) -> list[Model]:
    """Return committed models by name."""
    async with shelves.db.connection() as conn:
        return await entries.models_named(conn, caller.tenant, caller.project, text, after, limit)


async def tokenizer_folder(shelves: Shelves, model: Model) -> Path:
    """Return a local folder with everything of a model but its weights."""
    files = {
        model.key(file.name): file for file in model.files if not file.name.endswith(".safetensors")
    }
    return await shelves.cache.folder(f"model-{model.revision}", files)


async def forget_model(shelves: Shelves, model: Model) -> None:
    """Remove an upload that came to nothing, unless it was committed meanwhile."""
    # Objects go while the row is locked: a commit that comes now waits and finds nothing.
    async with shelves.db.transaction() as conn:
        if await entries.forget_model(conn, model):
            await shelves.objects.delete([model.key(file.name) for file in model.files])


def _license(text: str) -> str:
    if len(text) > LICENSE_CHARACTERS_MAX or not text.isprintable():
        raise UploadRefused(
            "license", f"must be printable text of at most {LICENSE_CHARACTERS_MAX} characters"
        )
    return text or "unknown"


async def _examined(shelves: Shelves, model: Model) -> Model:
    """Return the model with what its files say; refuse what could run code or cannot be read."""
    folder = await tokenizer_folder(shelves, model)
    config = await asyncio.to_thread(_read_config, folder)
    context = await asyncio.to_thread(_read_tokenizer, folder)
    parameter_count = 0
    for file in model.files:
        if file.name.endswith(".safetensors"):
            parameter_count += await _parameters(shelves, model, file)
    return replace(
        model,
        model_type=str(config["model_type"]),
        parameter_count=parameter_count,
        context_length=context or 0,
    )


async def _parameters(shelves: Shelves, model: Model, file: File) -> int:
    key = model.key(file.name)
    start = await shelves.objects.get_bytes(key, offset=0, length=weights.LENGTH_BYTES)
    length = weights.header_bytes(start, name=file.name, file_bytes=file.size_bytes)
    body = await shelves.objects.get_bytes(key, offset=weights.LENGTH_BYTES, length=length)
    header = await asyncio.to_thread(
        weights.read_header, body, name=file.name, file_bytes=file.size_bytes
    )
    return header.parameter_count


def _read_tokenizer(folder: Path) -> int | None:
    """Load the tokenizer and compile its templates; return the context, where anything says it."""
    try:
        return SampleTokenizer.load(folder).context
    except InvalidArgument:
        raise
    except Exception as error:  # the tokenizer's library raises nothing more exact.
        raise ModelRefused("tokenizer.json", f"cannot be loaded: {str(error)[:200]}") from error


def _read_config(folder: Path) -> dict[str, Any]:
    config = _read_object(folder, "config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not MODEL_TYPE.match(model_type):
        raise ModelRefused("config.json", "names no model_type")
    for name in ("config.json", "tokenizer_config.json", "processor_config.json"):
        values = _read_object(folder, name) if (folder / name).is_file() else {}
        for key in CODE_KEYS:
            if key in values:
                raise ModelRefused(
                    name, f"asks to run code of its own ({key}); use a model without custom code"
                )
    return config


def _read_object(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((folder / name).read_bytes())
    except (ValueError, RecursionError):
        raise ModelRefused(name, "is not JSON") from None
    if not isinstance(found, dict):
        raise ModelRefused(name, "is no object")
    return found
