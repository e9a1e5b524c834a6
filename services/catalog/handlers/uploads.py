"""What uploads of models and datasets share: parts that are missing, parts that come by stream."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

from lehr.ids import parse_id
from lehr.objects import ObjectStore
from lehr.postgres import Database
from lehr.rpc.auth import Caller
from lehr.rpc.context import seconds_left
from services.catalog.cache import FileCache
from services.catalog.domain.entries import (
    TOLD,
    WORKED_ON,
    Dataset,
    Entry,
    EntryState,
    File,
    Model,
    Reference,
)
from services.catalog.domain.errors import (
    DatasetNotFound,
    ModelNotFound,
    UploadClosed,
    UploadIncomplete,
    UploadRefused,
)
from services.catalog.domain.parts import PART_BYTES, Part, missing_parts, part_of
from services.catalog.sources import Sources
from services.catalog.storage import entries

Noun = Literal["model", "ds"]
"""What the ids of a kind of entry begin with."""

CHUNK_BYTES_MAX = 2**20
"""Largest piece of a streamed part."""

WAIT_SECONDS = 10.0
"""How long a commit waits for the end of the work."""

LOOK_SECONDS = (0.05, 0.5)
"""Pauses between two looks at the state: the first, and the longest."""

STREAMS_AT_ONCE = 4
"""Parts that are taken by stream at the same time; each needs its size on the disk."""


class Bell:
    """Wakes those who work on entries, in this process."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    def add(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever there may be something to do."""
        self._listeners.append(listener)

    def ring(self) -> None:
        """Say that there may be something to do."""
        for listener in self._listeners:
            listener()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelves:
    """Where the catalog keeps things."""

    db: Database
    objects: ObjectStore
    cache: FileCache
    link_lifetime: timedelta
    scratch: Path
    """Folder for files that are worked on."""
    sources: Sources
    """Hubs and buckets that are imported from."""
    part_bytes: int = PART_BYTES
    processes: int = 1
    """Processes that examine one dataset."""
    bell: Bell = field(default_factory=Bell)
    streams: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STREAMS_AT_ONCE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A file with a signed address."""

    file: File
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedPart:
    """A part that has not arrived, and where it goes."""

    part: Part
    url: str


Missing = dict[File, list[SignedPart]]


async def find_entry(
    shelves: Shelves, *, caller: Caller, entry_id: str, noun: Noun | None = None
) -> Entry:
    """Return a model or dataset of the caller's project by id, in any state.

    Raises:
        InvalidArgument: it is no id of the noun; without one, of neither.
        ModelNotFound, DatasetNotFound: the project has none.
    """
    who = (caller.tenant, caller.project)
    is_model = noun == "model" or (noun is None and entry_id.startswith("model_"))
    reference = Reference(entry_id=parse_id(entry_id, "model" if is_model else "ds"))
    found: Entry | None
    async with shelves.db.connection() as conn:
        if is_model:
            found = await entries.find_model(conn, *who, reference)
        else:
            found = await entries.find_dataset(conn, *who, reference)
    if found is None:
        raise (ModelNotFound if is_model else DatasetNotFound)(entry_id)
    return found


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
            raise _differed(entry)
        left = sum(part.size_bytes for part in parts)
        raise UploadIncomplete(file.name, f"has not arrived: {left} bytes of it are missing")
    async with shelves.db.transaction() as conn:
        if isinstance(entry, Model):
            await entries.begin_model(conn, entry)
        elif isinstance(entry, Dataset):
            await entries.begin_dataset(conn, entry)
    shelves.bell.ring()


def _differed(entry: Entry) -> UploadIncomplete:
    """Return why an upload has to be sent again; the file's name is the first word of that."""
    name, _, why = entry.refusal.partition(" ")
    return UploadIncomplete(name, why)


async def settled(shelves: Shelves, *, caller: Caller, entry_id: str, noun: Noun) -> Entry:
    """Have an entry validated where it is still uploading, and wait some seconds for the end.

    Returns the entry as it then is: READY or REFUSED, or still being worked on.

    Raises:
        ModelNotFound, DatasetNotFound: the project has none.
        UploadIncomplete: a part is missing, or what arrived is not what was announced.
    """
    entry = await find_entry(shelves, caller=caller, entry_id=entry_id, noun=noun)
    if entry.state is EntryState.UPLOADING:
        await begin_validation(shelves, entry)
    loop = asyncio.get_running_loop()
    left = seconds_left()
    # The answer must still reach a caller with a short deadline.
    give_up_at = loop.time() + min(WAIT_SECONDS, WAIT_SECONDS if left is None else left / 2)
    pause, longest = LOOK_SECONDS
    while True:
        entry = await find_entry(shelves, caller=caller, entry_id=entry_id)
        if entry.state in TOLD:
            return entry
        if entry.state is EntryState.UPLOADING and entry.refusal:
            raise _differed(entry)
        if entry.state not in WORKED_ON or loop.time() + pause > give_up_at:
            return entry
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


async def take_part(
    shelves: Shelves,
    *,
    caller: Caller,
    target: tuple[str, str, int],
    chunks: AsyncIterator[bytes],
) -> Part:
    """Take one part by stream: ``target`` is entry id, file name and number of the part.

    Raises:
        ModelNotFound, DatasetNotFound: the project has no such entry.
        UploadRefused: there is no such part, or it has another size than was announced.
        UploadClosed: no parts are awaited.
    """
    entry_id, file_name, number = target
    entry = await find_entry(shelves, caller=caller, entry_id=entry_id)
    part = part_of(entry, file_name, number, shelves.part_bytes)
    if entry.state is not EntryState.UPLOADING:
        raise UploadClosed(entry_id, entry.state)
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


async def remove_objects(shelves: Shelves, prefixes: Sequence[str]) -> None:
    """Delete everything below some prefixes; nothing there is no error."""
    for prefix in prefixes:
        stored = await shelves.objects.list(prefix)
        await shelves.objects.delete([one.key for one in stored])


async def remove_entry(shelves: Shelves, entry: Entry, *, unchanged: bool = False) -> bool:
    """Remove an entry and its bytes; with ``unchanged`` only if nothing happened since it was read.

    Returns whether it was removed by this call.
    """
    prefixes = [entry.uploads_prefix, entry.prefix]
    if isinstance(entry, Dataset):
        prefixes.append(entry.tokens_prefix)
    # Objects go while the row is locked: who comes now waits, and finds nothing.
    async with shelves.db.transaction() as conn:
        if not await entries.remove(conn, entry, unchanged=unchanged):
            return False
        await remove_objects(shelves, prefixes)
    return True


async def delete_entry(shelves: Shelves, *, caller: Caller, entry_id: str, noun: Noun) -> None:
    """Remove an entry of the caller's project; one that is not there is no error.

    Raises:
        InvalidArgument: it is no id of the noun.
    """
    with suppress(ModelNotFound, DatasetNotFound):
        entry = await find_entry(shelves, caller=caller, entry_id=entry_id, noun=noun)
        await remove_entry(shelves, entry)
