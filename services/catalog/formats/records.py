"""Separated values: csv and tsv, whose first line names the columns."""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lehr.samples.checks import first_twice
from services.catalog.formats.errors import Broken
from services.catalog.formats.expansion import Stream
from services.catalog.formats.lines import BOM, refuse_wide_text
from services.catalog.formats.source import CHUNK_BYTES, ROW_BYTES_MAX, Fault, Found

#: Bytes that are not UTF-8, as ``surrogateescape`` carries them.
_ESCAPED = re.compile("[\udc80-\udcff]")
_OTHER_DELIMITERS = {";": "a semicolon", "\t": "a tab", "|": "a bar", ",": "a comma"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Rows of a table of text that follow each other."""

    first: int
    """Number of the first row, from 1; the header is not counted."""
    header: tuple[str, ...]
    cells: tuple[list[str] | Fault, ...]

    @property
    def last(self) -> int:
        """Number of the last row."""
        return self.first + len(self.cells) - 1

    def rows(self) -> Iterator[tuple[int, Found]]:
        """Yield number and cells by column of each row that is not blank."""
        for number, cells in enumerate(self.cells, start=self.first):
            if isinstance(cells, Fault):
                yield number, cells
            elif cells:
                yield number, self._row(cells)

    def _row(self, cells: list[str]) -> Found:
        if len(cells) != len(self.header):
            return Fault(
                what=f"has {_fields(len(cells))} where the header has {len(self.header)};"
                " put text with separators or line ends into quotes"
            )
        for column, cell in zip(self.header, cells, strict=True):
            if not cell.isascii() and (escaped := _ESCAPED.search(cell)):
                at = len(cell[: escaped.start()].encode()) + 1
                return Fault(what=f"{column} is not UTF-8 at byte {at}; save the file as UTF-8")
        return dict(zip(self.header, cells, strict=True))


def split_records(
    stream: Stream, *, delimiter: str, row_bytes_max: int = ROW_BYTES_MAX
) -> Iterator[Records]:
    """Yield all rows of a table in order.

    Raises:
        Broken: the stream is, there is no header, or a line is endless.
    """
    # The limit belongs to the process; nothing else here reads such files.
    csv.field_size_limit(row_bytes_max)
    text = io.TextIOWrapper(
        io.BufferedReader(_Raw(stream), CHUNK_BYTES),
        encoding="utf-8",
        errors="surrogateescape",
        newline="",
    )
    reader = csv.reader(_lines(text, row_bytes_max), delimiter=delimiter, strict=True)
    header = _header(reader, delimiter)
    if not header:
        return
    first, size, rows = 1, 0, list[list[str] | Fault]()
    try:
        for cells in _rows(reader):
            rows.append(cells)
            # What a cell weighs beyond its text keeps tables of tiny cells in bounds.
            size += 64 if isinstance(cells, Fault) else sum(map(len, cells)) + 16 * len(cells)
            if size >= CHUNK_BYTES:
                yield Records(first=first, header=header, cells=tuple(rows))
                first, size, rows = first + len(rows), 0, []
    except Broken as broken:
        broken.line = first + len(rows)
        if rows:
            yield Records(first=first, header=header, cells=tuple(rows))
        raise
    if rows:
        yield Records(first=first, header=header, cells=tuple(rows))


def _header(reader: Any, delimiter: str) -> tuple[str, ...]:
    try:
        header = next((tuple(cells) for cells in reader if cells), ())
    except csv.Error as error:
        raise Broken("TABLE_BROKEN", f"has no readable header: {error}", line=1) from None
    if any(not name.strip() or _ESCAPED.search(name) for name in header):
        raise Broken("TABLE_BROKEN", "has a column without a readable name in its header", line=1)
    twice = first_twice(header)
    if twice is not None:
        raise Broken("TABLE_BROKEN", f"has the column {twice[:80]!r} twice", line=1)
    if len(header) == 1:
        for other, name in _OTHER_DELIMITERS.items():
            if other != delimiter and other in header[0]:
                wanted = _OTHER_DELIMITERS[delimiter]
                raise Broken("TABLE_BROKEN", f"has {name} between columns; use {wanted}", line=1)
    return header


def _rows(reader: Any) -> Iterator[list[str] | Fault]:
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # The reader goes on with the next line.
            yield Fault(what=f"cannot be read: {error}; check its quotes")


def _lines(text: io.TextIOWrapper, row_bytes_max: int) -> Iterator[str]:
    while line := text.readline(row_bytes_max + 1):
        if len(line) > row_bytes_max:
            raise Broken(
                "TABLE_BROKEN", f"has a line longer than {row_bytes_max} bytes; split the row"
            )
        yield line


def _fields(count: int) -> str:
    return "1 field" if count == 1 else f"{count} fields"


class _Raw(io.RawIOBase):
    """A stream as the standard library wants it, without a byte order mark."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._is_begun = False

    def readable(self) -> bool:
        """Tell the standard library that it may read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``; 0 at the end."""
        data = self._stream.read(len(buffer))
        if not self._is_begun:
            self._is_begun = True
            refuse_wide_text(data)
            data = data.removeprefix(BOM)
        buffer[: len(data)] = data
        return len(data)
