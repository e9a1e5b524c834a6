"""Rows at rest: one line of compact JSON each, whatever file and layout they came from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import zstandard

from lehr.samples.rows import ROW_TYPES, Row

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
#: Fields that hold JSON of the author's own, in which a list stays a list.
_JSON_FIELDS = frozenset({"answer", "columns"})
#: Few, because equal rows pack so well that one packed byte may hold kilobytes.
_READ_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A row and where its author wrote it."""

    line: int
    """As a person counts, from 1: text line, table row without the header, or list element."""
    file: int
    """Place of the file in the dataset's list, from 0."""
    row: Row


def to_line(row: Row, *, line: int, file: int) -> bytes:
    """Return the row as one line, its end included; ``from_line`` gives back the very same."""
    told: dict[str, Any] = {"kind": row.kind, "line": line, "file": file}
    for name, value in row.fields.items():
        if value is not None and (name != "images" or value):
            told[name] = value
    try:
        text = orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # Numbers beyond 64 bits, and half a surrogate pair.
        return _slowly(told)
    # orjson writes null for what is no number; the slower encoder refuses it.
    return text if b"null" not in text else _slowly(told)


def _slowly(told: dict[str, Any]) -> bytes:
    try:
        return (_encode(told) + "\n").encode()
    except UnicodeEncodeError:
        # Half a surrogate pair has no UTF-8; as an escape it can be kept.
        return (_encode_ascii(told) + "\n").encode()


def from_line(raw: bytes) -> Located:
    """Read a line that ``to_line`` wrote."""
    told: dict[str, Any] = json.loads(raw)
    row_type = ROW_TYPES[told.pop("kind")]
    line, file = told.pop("line"), told.pop("file")
    for name, value in told.items():
        if isinstance(value, list) and name not in _JSON_FIELDS:
            told[name] = tuple(value)
    return Located(line=line, file=file, row=row_type(**told))


def read_canonical(path: Path) -> Iterator[Located]:
    """Yield the rows of a ``rows.jsonl.zst``, which is one or more zstd frames of such lines.

    Raises:
        EOFError: the file is cut off; rows before the cut have been given.
    """
    return map(from_line, lines_at_rest(path))


def lines_at_rest(path: Path) -> Iterator[bytes]:
    """Yield the lines of such a file, without their ends; raises as ``read_canonical``."""
    with path.open("rb") as file:
        rest: list[bytes] = []
        for piece in _decompressed(file):
            *lines, last = piece.split(b"\n")
            for line in lines:
                yield b"".join([*rest, line])
                rest = []
            rest.append(last)
        if any(rest):
            raise EOFError(f"{path.name} ends in the middle of a row")


def _decompressed(file: BinaryIO) -> Iterator[bytes]:
    """Yield the contents of all frames; the library's own reader takes a cut frame for a whole."""
    decompressor = zstandard.ZstdDecompressor()
    frame: zstandard.ZstdDecompressionObj | None = None
    while packed := file.read(_READ_BYTES):
        while packed:
            frame = frame or decompressor.decompressobj()
            yield frame.decompress(packed)
            packed = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError(f"{file.name} ends in the middle of a frame")
