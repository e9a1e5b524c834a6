"""JSON arrays: the elements of one list, found without reading the whole."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from services.catalog.formats.errors import Broken
from services.catalog.formats.expansion import Stream
from services.catalog.formats.lines import BOM, refuse_wide_text, text_of
from services.catalog.formats.source import CHUNK_BYTES, ROW_BYTES_MAX, Found

ROW_FIELDS = frozenset(
    {
        "messages",
        "conversations",
        "prompt",
        "completion",
        "chosen",
        "rejected",
        "completions",
        "labels",
        "tools",
        "images",
    }
)
"""Lists of objects under these names are part of one row, not a list of rows."""

_SPACE = re.compile(rb"[ \t\r\n]*+")
_MARK = re.compile(rb'["{}\[\]]')
#: Up to the quote that ends a string; a backslash that is last waits for what it escapes.
_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\[\]{}\":]*+")
_CLOSES = {b"{": b"}", b"[": b"]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Elements of a list that follow each other."""

    first: int
    """Number of the first element, from 1."""
    raws: tuple[bytes, ...]
    row_bytes_max: int = ROW_BYTES_MAX

    @property
    def last(self) -> int:
        """Number of the last element."""
        return self.first + len(self.raws) - 1

    def rows(self) -> Iterator[tuple[int, Found]]:
        """Yield number and text of each element."""
        for number, raw in enumerate(self.raws, start=self.first):
            yield number, text_of(raw, unit="element", bytes_max=self.row_bytes_max)


def split_elements(stream: Stream, *, row_bytes_max: int = ROW_BYTES_MAX) -> Iterator[Elements]:
    """Yield the elements of an array, or of the one list of objects in an object, in order.

    Raises:
        Broken: it is neither, or not JSON between its elements.
    """
    scanner = _Scanner(stream, row_bytes_max)
    first = scanner.peek()
    elements = _list(scanner) if first == b"[" else _object(scanner)
    number, size, raws = 1, 0, list[bytes]()
    try:
        for raw in elements:
            raws.append(raw)
            size += len(raw)
            if size >= CHUNK_BYTES:
                yield Elements(first=number, raws=tuple(raws), row_bytes_max=row_bytes_max)
                number, size, raws = number + len(raws), 0, []
        if scanner.peek():
            raise scanner.broken("goes on after the end of its JSON")
    except Broken as broken:
        broken.line = number + len(raws)
        if raws:
            yield Elements(first=number, raws=tuple(raws), row_bytes_max=row_bytes_max)
        raise
    if raws:
        yield Elements(first=number, raws=tuple(raws), row_bytes_max=row_bytes_max)


def holds_rows(value: object) -> bool:
    """Tell whether a JSON object is a wrapper around a list of rows, not a row itself."""
    return isinstance(value, dict) and any(
        isinstance(inner, list) and key not in ROW_FIELDS and inner and isinstance(inner[0], dict)
        for key, inner in value.items()
    )


def _list(scanner: "_Scanner") -> Iterator[bytes]:
    """Yield the elements of the list that begins here."""
    scanner.expect(b"[")
    if scanner.peek() == b"]":
        scanner.expect(b"]")
        return
    while True:
        yield scanner.value()
        if scanner.expect(b",]") == b"]":
            return


def _object(scanner: "_Scanner") -> Iterator[bytes]:
    """Yield the elements of the one list of objects in the object that begins here."""
    found, keys = "", list[str]()
    for key in _keys(scanner):
        keys.append(key)
        if key in ROW_FIELDS or scanner.peek() != b"[" or not scanner.opens_objects():
            scanner.skip()
            continue
        if found:
            raise scanner.broken(
                f"holds two lists of objects, {found!r} and {key!r}; save each as a file"
            )
        found = key
        yield from _list(scanner)
    if not found:
        told = ", ".join(map(repr, keys[:20])) or "none"
        raise scanner.broken(f"is an object without a list of rows; its keys: {told}")


def _keys(scanner: "_Scanner") -> Iterator[str]:
    """Yield each key of the object that begins here; the caller consumes the value."""
    scanner.expect(b"{")
    if scanner.peek() == b"}":
        scanner.expect(b"}")
        return
    while True:
        if scanner.peek() != b'"':
            raise scanner.broken("has no key")
        raw = scanner.value()
        scanner.expect(b":")
        try:
            yield str(json.loads(raw))[:200]
        except ValueError:
            raise scanner.broken("has a key that is not JSON") from None
        if scanner.expect(b",}") == b"}":
            return


class _Scanner:
    """Finds where values end; what they hold is read later, in another process."""

    def __init__(self, stream: Stream, row_bytes_max: int) -> None:
        self._stream = stream
        self._row_bytes_max = row_bytes_max
        self._data = b""
        self._at = 0
        self._base = 0  # bytes of the file before ``_data``
        self._begin: int | None = None  # where the value begins that is kept
        self._kept = b""  # its head, once it has grown too long
        self._more()
        refuse_wide_text(self._data)
        self._at = len(BOM) if self._data.startswith(BOM) else 0

    def peek(self) -> bytes:
        """Return the next byte that is no white space; nothing at the end."""
        while True:
            space = _SPACE.match(self._data, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._data):
                return self._data[self._at : self._at + 1]
            if not self._more():
                return b""

    def expect(self, wanted: bytes) -> bytes:
        """Consume one of the bytes ``wanted``."""
        found = self.peek()
        if not found or found not in wanted:
            names = " or ".join(repr(chr(byte)) for byte in wanted)
            raise self.broken(
                f"has {found.decode(errors='replace')!r} where {names} belongs"
                if found
                else f"ends where {names} belongs; it was cut off"
            )
        self._at += 1
        return found

    def opens_objects(self) -> bool:
        """Tell whether the list that begins here holds objects; consumes nothing."""
        while True:
            space = _SPACE.match(self._data, self._at + 1)
            end = space.end() if space else len(self._data)
            if end < len(self._data):
                return self._data[end : end + 1] == b"{"
            if not self._more():
                return False

    def value(self) -> bytes:
        """Consume one value and return its bytes; too many are cut, and still too many."""
        self.peek()
        self._begin = self._at
        self.skip()
        raw = self._kept or self._data[self._begin or 0 : self._at]
        self._begin, self._kept = None, b""
        return raw

    def skip(self) -> None:
        """Consume one value."""
        first = self.peek()
        if first == b'"':
            self._string()
        elif first in _CLOSES:
            self._nested()
        elif not first:
            raise self.broken("ends where a value belongs; it was cut off")
        else:
            self._scalar()

    def broken(self, what: str) -> Broken:
        """Tell what is wrong here."""
        return Broken("JSON_BROKEN", f"{what}, at byte {self._base + self._at + 1}")

    def _nested(self) -> None:
        open_marks = list[bytes]()
        while True:
            mark = _MARK.search(self._data, self._at)
            if mark is None:
                self._at = len(self._data)
                if not self._more():
                    raise self.broken(f"ends inside a value that {open_marks[0]!r} opens")
                continue
            self._at = mark.start()
            found = mark.group()
            if found == b'"':
                self._string()
                continue
            if found in _CLOSES:
                open_marks.append(found)
            elif found != _CLOSES[open_marks.pop()]:
                raise self.broken(f"has {found.decode()!r} where another bracket is open")
            self._at += 1
            if not open_marks:
                return

    def _string(self) -> None:
        self._at += 1
        while True:
            text = _STRING.match(self._data, self._at)
            self._at = text.end() if text else self._at
            if self._data[self._at : self._at + 1] == b'"':
                self._at += 1
                return
            if not self._more():
                self._at = len(self._data)
                raise self.broken("ends inside a text; it was cut off")

    def _scalar(self) -> None:
        begin = self._base + self._at
        while True:
            word = _SCALAR.match(self._data, self._at)
            self._at = word.end() if word else self._at
            if self._at < len(self._data) or not self._more():
                break
        if self._base + self._at == begin:
            raise self.broken(f"has {chr(self._data[self._at])!r} where a value belongs")

    def _more(self) -> bool:
        """Read on; what lies before the value that is being kept is forgotten."""
        if self._begin is not None and len(self._data) - self._begin > self._row_bytes_max:
            self._kept = self._data[self._begin : self._begin + self._row_bytes_max + 1]
            self._begin = None
        keep = self._at if self._begin is None else self._begin
        block = self._stream.read(CHUNK_BYTES)
        self._base += keep
        self._at -= keep
        self._data = self._data[keep:] + block
        if self._begin is not None:
            self._begin = 0
        return bool(block)
