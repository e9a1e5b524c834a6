"""What is read, how much of it, and how a file that cannot be read is told."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHUNK_BYTES = 4 * 2**20
"""Bytes of rows that are read together."""

ROW_BYTES_MAX = 32 * 2**20
"""Longest line, JSON element or table row that is read as a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file on this machine under the name that its owner gave it."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a compressed file may become; what passes them is refused with the figure."""

    ratio: int = 50
    """Expanded bytes for one byte of the file."""
    floor_bytes: int = 256 * 2**20
    """Expanded bytes that any file may have, however small it is."""
    expanded_bytes: int = 100 * 2**30
    """Expanded bytes that no file may exceed."""
    members: int = 100_000
    """Files in one zip archive."""

    def expanded_max(self, size_bytes: int) -> int:
        """Return the bytes that a file of ``size_bytes`` may expand to."""
        return min(self.expanded_bytes, max(self.ratio * size_bytes, self.floor_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that is wrong with one row, or worth telling of it."""

    what: str
    """What is wrong and what to do."""
    reason: str = "ROW_INVALID"
    is_error: bool = True


Found = str | Mapping[str, Any] | Fault
"""One row as found: text of a JSON object, values by column, or what is wrong with it."""
