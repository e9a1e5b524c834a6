"""What all use cases of the catalog work with."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from lehr.objects import ObjectStore
from lehr.postgres import Database
from services.catalog.cache import FileCache
from services.catalog.domain.entries import Entry, File
from services.catalog.domain.parts import PART_BYTES
from services.catalog.sources import Sources

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


def links(shelves: Shelves, files: Iterable[tuple[str, File]]) -> list[Link]:
    """Return signed addresses to read files from, each given with the key of its object."""
    sign, lifetime = shelves.objects.presign_get, shelves.link_lifetime
    return [Link(file=file, url=sign(key, lifetime)) for key, file in files]


def file_links(shelves: Shelves, entry: Entry) -> list[Link]:
    """Return signed addresses of an entry's files as they came."""
    return links(shelves, ((entry.key(file.name), file) for file in entry.files))


async def remove_objects(shelves: Shelves, prefixes: Iterable[str]) -> None:
    """Delete everything below some prefixes; nothing there is no error."""
    for prefix in prefixes:
        stored = await shelves.objects.list(prefix)
        await shelves.objects.delete([one.key for one in stored])
