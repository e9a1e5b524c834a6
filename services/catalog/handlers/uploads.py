"""Use cases of uploads: parts that are missing, and parts that come by stream."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from services.catalog.domain.entries import Entry, EntryState, File
from services.catalog.domain.errors import UploadClosed, UploadIncomplete, UploadRefused
from services.catalog.domain.parts import Part, missing_parts, part_of
from services.catalog.handlers.shelves import Shelves
from services.catalog.storage import entries

CHUNK_BYTES_MAX = 2**20
"""Largest piece of a streamed part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedPart:
    """A part that has not arrived, and where it goes."""

    part: Part
    url: str


Missing = dict[File, list[SignedPart]]


async def missing_of(shelves: Shelves, entry: Entry) -> dict[File, tuple[Part, ...]]:
    """Return the parts of an entry that have not arrived in their size."""
    stored = await shelves.objects.list(entry.uploads_prefix)
    arrived = {one.key: one.size_bytes for one in stored}
    return await asyncio.to_thread(missing_parts, entry, arrived, shelves.part_bytes)


async def signed(shelves: Shelves, entry: Entry) -> Missing:
    """Return where the missing parts of an upload go; nothing where none is awaited."""
    if entry.state is not EntryState.UPLOADING:
        return {}
    missing = await missing_of(shelves, entry)
    sign, lifetime = shelves.objects.presign_put, shelves.link_lifetime

    def addresses() -> Missing:
        return {
            file: [SignedPart(part=part, url=sign(part.key, lifetime)) for part in parts]
            for file, parts in missing.items()
        }

    # Signing thousands of addresses takes a second.
    return await asyncio.to_thread(addresses)


async def begin_validation(shelves: Shelves, entry: Entry) -> None:
    """Have an upload validated, if all of it has arrived.

    Raises:
        UploadIncomplete: a part is missing.
    """
    missing = await missing_of(shelves, entry)
    if missing:
        file, parts = next(iter(missing.items()))
        if entry.refusal:
            raise UploadIncomplete.told(entry.refusal)
        left = sum(part.size_bytes for part in parts)
        raise UploadIncomplete(file.name, f"has not arrived: {left} bytes of it are missing")
    async with shelves.db.transaction() as conn:
        await entries.begin(conn, entry)
    shelves.bell.ring()


async def take_part(
    shelves: Shelves, entry: Entry, target: tuple[str, int], chunks: AsyncIterator[bytes]
) -> Part:
    """Take one part by stream: ``target`` is file name and number of the part.

    Raises:
        UploadRefused: there is no such part, or it has another size than was announced.
        UploadClosed: no parts are awaited.
    """
    file_name, number = target
    part = part_of(entry, file_name, number, shelves.part_bytes)
    if entry.state is not EntryState.UPLOADING:
        raise UploadClosed(entry.entry_id, entry.state)
    async with shelves.streams:
        with tempfile.NamedTemporaryFile(dir=shelves.scratch, prefix="part-") as spool:
            received = 0
            async for chunk in chunks:
                received += len(chunk)
                if len(chunk) > CHUNK_BYTES_MAX or received > part.size_bytes:
                    break
                await asyncio.to_thread(spool.write, chunk)
            if received != part.size_bytes:
                raise UploadRefused(
                    "chunk",
                    f"part {number} of {file_name} has {part.size_bytes} bytes, in pieces of at"
                    f" most {CHUNK_BYTES_MAX}; {received} came",
                )
            await asyncio.to_thread(spool.flush)
            await shelves.objects.put_file(part.key, Path(spool.name), is_frugal=True)
    return part
