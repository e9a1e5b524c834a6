"""Use cases of models."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lehr.rpc.auth import Caller
from services.catalog.domain import weights
from services.catalog.domain.announcing import check_model_files, check_origin
from services.catalog.domain.entries import File, Model, Source, model_revision
from services.catalog.domain.errors import ModelRefused
from services.catalog.domain.facts import INDEX, check_index, facts_of
from services.catalog.domain.licenses import UNKNOWN, Terms
from services.catalog.domain.weights import Header
from services.catalog.handlers.entries import announced, register
from services.catalog.handlers.shelves import Shelves
from services.catalog.handlers.uploads import Missing, signed
from services.catalog.tokens.probing import probe

MODEL_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")

#: Keys of config.json with which a repository asks to run code of its own.
CODE_KEYS = ("auto_map", "custom_pipelines")

JSON_BYTES_MAX = 32 * 2**20
"""Largest config or index that is read; that of a model of 100,000 tensors has 10 MB."""


async def add_model(
    shelves: Shelves, *, caller: Caller, name: str, files: Sequence[File], terms: Terms
) -> tuple[Model, Missing]:
    """Register a model and return where the missing parts of its files go.

    Raises:
        UploadRefused: names, sizes or kinds of files, or the licence, are not taken.
        LicenseNotAcknowledged: nobody answers for the licence.
    """
    checked = check_model_files(files)
    key = model_revision(checked)
    wanted = Model(
        **announced(Model, caller, name, key=key, terms=terms, empty_means=UNKNOWN),
        files=checked,
        source=Source.of_upload(check_origin(terms.origin)),
    )
    found = await register(shelves, wanted)
    return found, await signed(shelves, found)


async def tokenizer_folder(shelves: Shelves, model: Model) -> Path:
    """Return a local folder with everything of a model but its weights."""
    files = {
        model.key(file.name): file for file in model.files if not file.name.endswith(".safetensors")
    }
    return await shelves.cache.folder(f"model-{model.revision}", files)


async def examined(shelves: Shelves, model: Model) -> Model:
    """Return the model with what its files say; refuse what could run code or cannot be read.

    Raises:
        ModelRefused: it is no model that is safe to use, or none that can be loaded.
        TimeoutError: its tokenizer could not be looked at in time.
    """
    folder = await tokenizer_folder(shelves, model)
    config = await asyncio.to_thread(_read_config, folder)
    by_file = await _headers(shelves, model)
    await asyncio.to_thread(_compare_index, folder, by_file)
    tensors = [tensor for header in by_file.values() for tensor in header.tensors]
    facts = await asyncio.to_thread(facts_of, config, tensors)
    probed = await asyncio.to_thread(probe, folder)
    if probed.refusal:
        raise ModelRefused("tokenizer", probed.refusal)
    facts = replace(facts, chat_template=probed.chat_template, chat_template_advice=probed.advice)
    return replace(
        model,
        model_type=str(config["model_type"]),
        parameter_count=facts.parameter_count,
        context_length=probed.context or 0,
        facts=asdict(facts),
    )


async def _headers(shelves: Shelves, model: Model) -> dict[str, Header]:
    """Return the header of each weights file, read alone: the weights stay where they are."""
    found: dict[str, Header] = {}
    read_bytes = 0
    for file in model.files:
        if not file.name.endswith(".safetensors"):
            continue
        key = model.key(file.name)
        start = await shelves.objects.get_bytes(key, offset=0, length=weights.LENGTH_BYTES)
        length = weights.header_bytes(start, name=file.name, file_bytes=file.size_bytes)
        read_bytes += length
        if read_bytes > weights.HEADERS_BYTES_MAX:
            raise ModelRefused(
                file.name, f"makes {read_bytes} bytes of headers; save fewer, larger tensors"
            )
        body = await shelves.objects.get_bytes(key, offset=weights.LENGTH_BYTES, length=length)
        found[file.name] = await asyncio.to_thread(
            weights.read_header, body, name=file.name, file_bytes=file.size_bytes
        )
    return found


def _compare_index(folder: Path, by_file: Mapping[str, Header]) -> None:
    if not (folder / INDEX).is_file():
        return
    weight_map = _read_object(folder, INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelRefused(INDEX, "has no weight_map; save the model again with save_pretrained")
    check_index(
        weight_map,
        {name: [tensor.name for tensor in header.tensors] for name, header in by_file.items()},
    )


def _read_config(folder: Path) -> dict[str, Any]:
    config = _read_object(folder, "config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not MODEL_TYPE.match(model_type):
        raise ModelRefused("config.json", "names no model_type")
    # Configs of the model, its tokenizer, its processors and its generation.
    for path in sorted(folder.glob("*config.json")):
        values = _read_object(folder, path.name)
        for key in CODE_KEYS:
            if key in values:
                raise ModelRefused(
                    path.name,
                    f"asks to run code of its own ({key}); use a model without custom code",
                )
    return config


def _read_object(folder: Path, name: str) -> dict[str, Any]:
    if (folder / name).stat().st_size > JSON_BYTES_MAX:
        raise ModelRefused(name, f"is larger than {JSON_BYTES_MAX} bytes")
    try:
        found = json.loads((folder / name).read_bytes())
    except (ValueError, RecursionError):
        raise ModelRefused(name, "is not JSON") from None
    if not isinstance(found, dict):
        raise ModelRefused(name, "is no object")
    return found
