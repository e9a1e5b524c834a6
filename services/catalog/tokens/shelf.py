"""Token tables in the object store, beside the dataset that they belong to.

A table is there once the small object that tells its size and digest is, which is written last.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

from lehr.objects import ObjectNotFound, ObjectStore
from services.catalog.domain.entries import Dataset, File

_TABLE, _TOLD = ".safetensors", ".json"


def table_key(dataset: Dataset, digest: str) -> str:
    """Return the object that holds a table; ``digest`` is that of the tokenizer."""
    return f"{dataset.tokens_prefix}{digest}{_TABLE}"


async def find_table(objects: ObjectStore, dataset: Dataset, digest: str) -> File | None:
    """Return the table of a dataset; None where there is none, or not all of it."""
    try:
        told = json.loads(await objects.get_bytes(f"{dataset.tokens_prefix}{digest}{_TOLD}"))
    except ObjectNotFound:
        return None
    found = File(name=f"{digest}{_TABLE}", size_bytes=told["size_bytes"], sha256=told["sha256"])
    is_whole = await objects.stat(table_key(dataset, digest)) == found.size_bytes
    return found if is_whole else None


async def all_tables(objects: ObjectStore, dataset: Dataset) -> list[tuple[str, File]]:
    """Return key and description of every table of a dataset."""
    stored = await objects.list(dataset.tokens_prefix)
    digests = [Path(one.key).stem for one in stored if one.key.endswith(_TOLD)]
    found = [(digest, await find_table(objects, dataset, digest)) for digest in digests]
    return [(table_key(dataset, digest), file) for digest, file in found if file is not None]


async def put_table(objects: ObjectStore, dataset: Dataset, digest: str, path: Path) -> None:
    """Keep a table; the same one again changes nothing."""
    sha256 = await asyncio.to_thread(_sha256, path)
    size_bytes = (await asyncio.to_thread(path.stat)).st_size
    await objects.put_file(table_key(dataset, digest), path)
    told = json.dumps({"size_bytes": size_bytes, "sha256": sha256}).encode()
    await objects.put_bytes(f"{dataset.tokens_prefix}{digest}{_TOLD}", told)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
