"""The parts in which files arrive: numbered, of one size, each an object of its own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from services.catalog.domain.entries import Entry, File
from services.catalog.domain.errors import UploadRefused

PART_BYTES = 64 * 2**20
"""Bytes of a part, but for the last of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a file."""

    key: str
    """Object that holds it until the entry is validated."""
    number: int
    """In its file, from 0."""
    offset_bytes: int
    size_bytes: int


def parts_of(entry: Entry, file: File, part_bytes: int) -> Iterator[Part]:
    """Yield the parts of a file in order."""
    at = entry.files.index(file)
    for number, offset in enumerate(range(0, file.size_bytes, part_bytes)):
        yield Part(
            key=f"{entry.uploads_prefix}{at}/{number}",
            number=number,
            offset_bytes=offset,
            size_bytes=min(part_bytes, file.size_bytes - offset),
        )


def part_of(entry: Entry, file_name: str, number: int, part_bytes: int) -> Part:
    """Return one part.

    Raises:
        UploadRefused: the entry has no such file, or the file no such part.
    """
    for file in entry.files:
        if file.name == file_name:
            for part in parts_of(entry, file, part_bytes):
                if part.number == number:
                    return part
            raise UploadRefused("number", f"is {number}, and {file_name} has no such part")
    raise UploadRefused("file_name", f"is {file_name[:128]!r}, which was not announced")


def missing_parts(
    entry: Entry, arrived: Mapping[str, int], part_bytes: int
) -> dict[File, tuple[Part, ...]]:
    """Return what did not arrive, or in another size; ``arrived`` is bytes by key."""
    found = {
        file: tuple(
            part
            for part in parts_of(entry, file, part_bytes)
            if arrived.get(part.key) != part.size_bytes
        )
        for file in entry.files
    }
    return {file: parts for file, parts in found.items() if parts}
