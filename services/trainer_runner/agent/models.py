"""Base models on this disk: one folder a revision, verified once, shared by all runs."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from lehr.errors import InvalidArgument
from services.trainer_runner.agent.folders import remove, sync_folder
from services.trainer_runner.agent.peers import FileLink
from services.trainer_runner.agent.transfer import Transfer

_REVISION = re.compile(r"[0-9a-f]{12,64}")


class Models:
    """Downloads a revision at most once, however many runs want it."""

    def __init__(self, folder: Path, transfer: Transfer) -> None:
        self._folder = folder
        self._transfer = transfer
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def get(self, revision: str, files: Sequence[FileLink]) -> Path:
        """Return the folder of a revision; its presence says that every byte was verified.

        Raises:
            TransferFailed: the object store does not give it.
            FileMissing: the object store does not have all of it.
            InvalidArgument: the revision is no digest.
        """
        if not _REVISION.fullmatch(revision):
            raise InvalidArgument(f"model revision {revision[:80]!r} is no digest in hex")
        place = self._folder / revision
        async with self._locks[revision]:
            if not place.is_dir():
                await self._download(place, files)
        return place

    async def _download(self, place: Path, files: Sequence[FileLink]) -> None:
        partial = self._folder / f".{place.name}.{secrets.token_hex(4)}"
        partial.mkdir()
        try:
            for link in files:
                await self._transfer.download(link, partial)
            await asyncio.to_thread(sync_folder, partial)
            partial.rename(place)
            await asyncio.to_thread(sync_folder, self._folder)
        finally:
            await asyncio.to_thread(remove, partial)
