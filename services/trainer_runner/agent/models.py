"""Base models on this disk: one folder a revision, verified once, shared by all runs.

What no run needs is kept as long as there is room. A run holds its model by naming it in the run's
own folder, so the hold outlives the agent and ends with the run.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from lehr.errors import InvalidArgument, Unavailable
from lehr.logs import get_logger
from services.trainer_runner.agent.folders import RunFolder, StateDir, remove, sync_folder
from services.trainer_runner.agent.peers import FileLink
from services.trainer_runner.agent.transfer import Transfer

_REVISION = re.compile(r"[0-9a-f]{12,64}")


class NodeDiskFull(Unavailable):
    """The node's disk has no room for a model, with all gone that no run needs."""

    reason = "NODE_DISK_FULL"


class Models:
    """Downloads a revision at most once, however many runs want it."""

    def __init__(self, state_dir: StateDir, transfer: Transfer, *, bytes_max: int) -> None:
        """Keep models in ``state_dir``, up to ``bytes_max`` in all or half of the disk."""
        self._state_dir = state_dir
        self._folder = state_dir.models_dir
        self._transfer = transfer
        self._bytes_max = bytes_max
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._room = asyncio.Lock()
        self._arriving: dict[Path, int] = {}

    async def get(self, revision: str, files: Sequence[FileLink], run: RunFolder) -> Path:
        """Return the folder of a revision; its presence says that every byte was verified.

        It stays as long as the folder of the run does.

        Raises:
            NodeDiskFull: there is no room for it.
            TransferFailed: the object store does not give it.
            FileMissing: the object store does not have all of it.
            InvalidArgument: the revision is no digest.
        """
        if not _REVISION.fullmatch(revision):
            raise InvalidArgument(f"model revision {revision[:80]!r} is no digest in hex")
        place = self._folder / revision
        async with self._locks[revision]:
            # Held before it is looked for: nothing may take it away in between.
            async with self._room:
                is_there = await asyncio.to_thread(self._hold, place, run)
            if not is_there:
                await self._download(place, files)
        return place

    def _hold(self, place: Path, run: RunFolder) -> bool:
        run.model_file.write_text(place.name)
        if not place.is_dir():
            return False
        os.utime(place)
        return True

    async def _download(self, place: Path, files: Sequence[FileLink]) -> None:
        size_bytes = sum(link.size_bytes for link in files)
        partial = self._folder / f".{place.name}.{secrets.token_hex(4)}"
        try:
            async with self._room:
                await asyncio.to_thread(self._make_room, size_bytes)
                self._arriving[partial] = size_bytes
                partial.mkdir()
            for link in files:
                await self._transfer.download(link, partial)
            await asyncio.to_thread(sync_folder, partial)
            partial.rename(place)
            await asyncio.to_thread(sync_folder, self._folder)
        finally:
            self._arriving.pop(partial, None)
            await asyncio.to_thread(remove, partial)

    def _make_room(self, needed: int) -> None:
        """Remove what was not used for longest until ``needed`` bytes fit.

        The limit yields to runs: what they need may lie beyond it, as long as the disk has room.
        """
        held = self._held()
        sizes = {place: _bytes_below(place) for place in self._oldest_first()}
        idle = {place: sizes[place] for place in sizes if place.name not in held}
        lacking = self._lacking(needed) - sum(idle.values())
        if lacking > 0:
            raise NodeDiskFull(
                f"the node's disk lacks {lacking} bytes for a model of {needed}, even without the"
                " models that no run needs; free some space on it, or give"
                " TRAINER_RUNNER_STATE_DIR a larger disk",
                lacking_bytes=lacking,
                needed_bytes=needed,
            )
        limit = min(self._bytes_max, shutil.disk_usage(self._folder).total // 2)
        kept = sum(sizes.values()) + sum(self._arriving.values()) + needed
        for place, size_bytes in idle.items():
            if kept <= limit and self._lacking(needed) <= 0:
                return
            # Renamed first: half a model must never look like one.
            doomed = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
            place.rename(doomed)
            remove(doomed)
            kept -= size_bytes
            get_logger().info("model_evicted", revision=place.name, size_bytes=size_bytes)

    def _lacking(self, needed: int) -> int:
        """Return how many bytes the disk has too few; at most 0 where it has enough."""
        coming = sum(size - _bytes_below(partial) for partial, size in self._arriving.items())
        return needed + coming - shutil.disk_usage(self._folder).free

    def _oldest_first(self) -> list[Path]:
        places = [place for place in self._folder.iterdir() if _REVISION.fullmatch(place.name)]
        return sorted(places, key=lambda place: place.stat().st_mtime_ns)

    def _held(self) -> set[str]:
        """Return the revisions that folders of runs name."""
        found = (run.model_file for run in self._state_dir.runs())
        return {path.read_text() for path in found if path.is_file()}


def _bytes_below(place: Path) -> int:
    return sum(path.stat().st_size for path in place.iterdir() if path.is_file())
