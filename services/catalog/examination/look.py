"""Looks at the rows of one piece of a file: the part of an examination that runs anywhere."""

import posixpath
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lehr.errors import InvalidArgument
from lehr.samples.canonical import to_line
from lehr.samples.checks import parse_json, type_name, wrong
from lehr.samples.images import StoreImage
from lehr.samples.layouts import recognise
from services.catalog.domain.report import Report
from services.catalog.examination.images import ImageRefused, ImageStore, refuse_images
from services.catalog.formats.errors import Broken
from services.catalog.formats.source import CHUNK_BYTES, Fault, Found
from services.catalog.formats.sources import Chunk

_LEVEL = 1
#: How ``lehr.samples.images`` refuses an address; each would be a kind of problem of its own.
_ADDRESS = re.compile(r"^is the address .*; nothing is fetched", re.DOTALL)
_FILE_NAME_COLUMNS = (("file_name", "image"), ("file_names", "images"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows that are looked at together."""

    file: int
    """Number of their file among those that hold rows, from 0."""
    name: str
    path: Path
    """The file, or the archive that it is in."""
    folder: str
    """Where paths of images begin in the archive."""
    chunk: Chunk
    done_bytes: int
    """Bytes of all files that went through when it was read."""

    @property
    def describes_images(self) -> bool:
        """It is the file in which a folder of images names them, in columns of its own."""
        return posixpath.basename(self.name).partition(".")[0] == "metadata"


@dataclass(slots=True, kw_only=True)
class Looked:
    """What came of rows that follow each other."""

    report: Report = field(default_factory=Report)
    frame: bytes = b""
    """Their canonical lines, compressed."""
    size_bytes: int = 0
    """Bytes of these lines before that."""
    keys: bytes = b""
    """Both keys of each readable row."""
    lines: "array[int]" = field(default_factory=lambda: array("q"))
    """Line number of each readable row."""
    used_images: set[str] = field(default_factory=set)


class Looker:
    """What is the same for all pieces of a dataset; sent to each process of a pool once."""

    def __init__(self, *, columns: Mapping[str, str], images: ImageStore | None) -> None:
        self._columns = dict(columns)
        self._images = images

    def look(self, piece: Piece) -> Iterator[Looked]:
        """Yield what comes of a piece, some megabytes of rows at a time.

        Raises:
            ImagesNeedPool: a row has an image, and there is no store for it.
        """
        looked, lines, keys = Looked(), list[bytes](), list[bytes]()
        number, store = piece.chunk.first, self._store(piece)
        try:
            for number, found in piece.chunk.rows():
                row = self._row(found, piece, number, looked.report, store)
                if row is None:
                    continue
                lines.append(row[0])
                keys.append(row[1])
                looked.lines.append(number)
                looked.size_bytes += len(row[0])
                if looked.size_bytes >= CHUNK_BYTES:
                    yield self._finished(looked, lines, keys)
                    looked, lines, keys = Looked(), [], []
        except Broken as broken:
            looked.report.add(
                broken.reason, broken.what, file=piece.file, line=broken.line, is_error=True
            )
        except MemoryError:
            looked.report.add(
                "TOO_LARGE_TO_READ",
                "needs too much memory to be read; split the row, or write smaller row groups",
                file=piece.file,
                line=number,
                is_error=True,
            )
        yield self._finished(looked, lines, keys)

    def _row(
        self, found: Found, piece: Piece, number: int, report: Report, store: StoreImage
    ) -> tuple[bytes, bytes] | None:
        """Return the canonical line and the keys of a row, or None where it is none."""
        if isinstance(found, Fault):
            report.add(
                found.reason, found.what, file=piece.file, line=number, is_error=found.is_error
            )
            return None
        try:
            row, layout = recognise(_value(found, piece), columns=self._columns, images=store)
            line = to_line(row, line=number, file=piece.file)
        except InvalidArgument as error:
            report.add_unreadable(_told(error), file=piece.file, line=number)
            return None
        # JSON has control characters only so; where none of these is, no text need be searched.
        controls = b"\x7f" in line or (
            b"\\" in line and (b"\\u00" in line or b"\\b" in line or b"\\f" in line)
        )
        report.add_row(row, layout, file=piece.file, line=number, may_hold_controls=controls)
        return line, row.key() + row.prompt_key()

    def _store(self, piece: Piece) -> StoreImage:
        if self._images is None:
            return refuse_images
        return self._images.of(piece.path, piece.folder)

    def _finished(self, looked: Looked, lines: list[bytes], keys: list[bytes]) -> Looked:
        if lines:
            looked.frame = _compressor().compress(b"".join(lines))
        looked.keys = b"".join(keys)
        looked.used_images = self._images.take_used() if self._images is not None else set()
        return looked


def look(looker: Looker, piece: Piece) -> Iterator[Looked]:
    """Look at a piece in a process of a pool."""
    return looker.look(piece)


def _value(found: str | Mapping[str, Any], piece: Piece) -> Mapping[str, Any]:
    value = parse_json(found) if isinstance(found, str) else found
    if not isinstance(value, Mapping):
        raise wrong("", f"is {type_name(value)}; write one JSON object a line")
    if piece.describes_images:
        for column, stands_for in _FILE_NAME_COLUMNS:
            if column in value and stands_for not in value:
                names = {column: stands_for}
                value = {names.get(key, key): item for key, item in value.items()}
    return value


def _told(error: InvalidArgument) -> InvalidArgument:
    """Return the refusal of a row under the reason that its image was refused for."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ImageRefused):
            error.reason = cause.reason
        cause = cause.__cause__
    violation = error.fields[0] if error.fields else None
    if violation is not None and _ADDRESS.match(violation.description):
        # The address itself would make each row a kind of problem of its own.
        told = wrong(
            error.facts.get("field", ""),
            "is an address; nothing is fetched, so put the image in a zip with the rows",
        )
        told.reason = "IMAGE_REMOTE"
        return told
    return error


@cache
def _compressor() -> Any:
    import zstandard  # noqa: PLC0415 - a service that is idle does not hold it

    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
