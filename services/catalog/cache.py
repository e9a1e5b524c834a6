"""Copies of objects on this machine's disk, by content, so that nothing is fetched twice."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from lehr.objects import ObjectStore
from services.catalog.domain.entries import File
from services.catalog.domain.errors import ContentChanged


class FileCache:
    """Folders of files; each is there whole and verified, or not at all."""

    def __init__(self, objects: ObjectStore, folder: Path, *, bytes_max: int) -> None:
        self._objects = objects
        self._folder = folder
        self._bytes_max = bytes_max
        self._locks: dict[str, asyncio.Lock] = {}
        self._arriving: set[Path] = set()

    async def folder(self, name: str, files: Mapping[str, File]) -> Path:
        """Return a folder with the objects ``files`` (key to file), fetched once.

        ``name`` must change whenever the content does.

        Raises:
            ContentChanged: an object is no longer what it was when it was committed.
        """
        target = self._folder / name
        async with self._locks.setdefault(name, asyncio.Lock()):
            if not await asyncio.to_thread(target.is_dir):
                await self._fetch(target, files)
            await asyncio.to_thread(os.utime, target)
        return target

    async def forget(self, name: str) -> None:
        """Remove a folder."""
        await asyncio.to_thread(shutil.rmtree, self._folder / name, ignore_errors=True)

    async def _fetch(self, target: Path, files: Mapping[str, File]) -> None:
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)
        await asyncio.to_thread(part.mkdir, parents=True)
        self._arriving.add(part)
        try:
            for key, file in files.items():
                # A folder may be shared by tenants: what is not the committed content must never
                # lie here, whoever changed the object store.
                found = await self._objects.get_file(key, part / file.name)
                if found.sha256 != file.sha256:
                    raise ContentChanged(file.name)
            await asyncio.to_thread(self._make_room, part)
            await asyncio.to_thread(part.rename, target)
        finally:
            self._arriving.discard(part)
            await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)

    def _make_room(self, part: Path) -> None:
        """Remove the longest unused folders until all fit; never one that is arriving."""
        arriving = set(self._arriving)
        folders = [path for path in self._folder.iterdir() if path not in arriving]
        folders.sort(key=lambda path: path.stat().st_mtime)
        left = self._bytes_max - _size(part) - sum(map(_size, folders))
        while left < 0 and folders:
            oldest = folders.pop(0)
            left += _size(oldest)
            shutil.rmtree(oldest, ignore_errors=True)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
