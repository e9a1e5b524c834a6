"""The progress clock: three instants that a trainer shares with its agent through a mapped file.

An agent must know when computing began and when it last moved, even if the trainer died without
a word or nobody could listen; the moment at which somebody notices is never used as a time.
"""

from __future__ import annotations

import mmap
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_LAYOUT = struct.Struct("<3d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Instants of CLOCK_MONOTONIC in seconds; 0.0 means not yet."""

    running_began: float
    last_progress: float
    compute_ended: float


class ProgressClock:
    """The trainer's end: stamps instants; never blocks."""

    def __init__(self, path: Path) -> None:
        if not path.exists() or path.stat().st_size != _LAYOUT.size:
            path.write_bytes(b"\0" * _LAYOUT.size)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    def __enter__(self) -> ProgressClock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._map.close()

    def begin(self) -> None:
        """The first batch is about to be computed."""
        now = time.monotonic()
        struct.pack_into("<2d", self._map, 0, now, now)

    def advance(self) -> None:
        """A step, an evaluation batch or a save went on."""
        struct.pack_into("<d", self._map, 8, time.monotonic())

    def end(self) -> None:
        """The GPUs are no longer needed."""
        now = time.monotonic()
        struct.pack_into("<2d", self._map, 8, now, now)


def read_progress(path: Path) -> Progress:
    """Read what a trainer stamped; all zeros when there is no file yet."""
    try:
        began, last, ended = _LAYOUT.unpack(path.read_bytes()[: _LAYOUT.size])
    except (FileNotFoundError, struct.error):
        began = last = ended = 0.0
    return Progress(running_began=began, last_progress=last, compute_ended=ended)
