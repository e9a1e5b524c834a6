"""JSON lines: cut at line ends, read in another process."""

from collections.abc import Iterator
from dataclasses import dataclass

from services.catalog.formats.errors import Broken
from services.catalog.formats.expansion import Stream
from services.catalog.formats.source import CHUNK_BYTES, ROW_BYTES_MAX, Fault, Found

BOM = b"\xef\xbb\xbf"
"""Mark at the start of a UTF-8 file, which some editors write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Whole lines of a text file."""

    first: int
    """Number of the first line, from 1."""
    raw: bytes
    row_bytes_max: int = ROW_BYTES_MAX

    @property
    def last(self) -> int:
        """Number of the last line."""
        return self.first + max(0, self.raw.rstrip(b"\n").count(b"\n"))

    def rows(self) -> Iterator[tuple[int, Found]]:
        """Yield number and text of each line that is not blank."""
        for number, raw in enumerate(self.raw.split(b"\n"), start=self.first):
            line = raw.removeprefix(BOM) if number == 1 else raw
            found = text_of(line, unit="line", bytes_max=self.row_bytes_max)
            if found:
                yield number, found


def split_lines(stream: Stream, *, row_bytes_max: int = ROW_BYTES_MAX) -> Iterator[Lines]:
    """Yield all lines of a stream in order; the rest of an endless line is left out.

    Raises:
        Broken: the stream is, or it is text of another encoding.
    """
    first, rest = 1, b""
    while block := stream.read(CHUNK_BYTES):
        if first == 1 and not rest:
            refuse_wide_text(block)
        data = rest + block
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) > row_bytes_max:
            yield Lines(first=first, raw=data[: row_bytes_max + 1], row_bytes_max=row_bytes_max)
            first, rest = first + 1, _after_line_end(stream)
            continue
        if end:
            yield Lines(first=first, raw=data[:end], row_bytes_max=row_bytes_max)
            first += data.count(b"\n", 0, end)
        rest = data[end:]
    if rest:
        yield Lines(first=first, raw=rest, row_bytes_max=row_bytes_max)


def text_of(raw: bytes, *, unit: str, bytes_max: int) -> str | Fault:
    """Return the text of a row without the blanks around it, or why it cannot be read."""
    if len(raw) > bytes_max:
        return Fault(what=f"this {unit} is longer than {bytes_max} bytes; split the row")
    try:
        return raw.decode().strip()
    except UnicodeDecodeError as error:
        return Fault(what=f"is not UTF-8 at byte {error.start + 1}; save the file as UTF-8")


def refuse_wide_text(head: bytes) -> None:
    """Refuse text of two or four bytes a letter.

    Raises:
        Broken: it is.
    """
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Broken("ENCODING", "is UTF-16 or UTF-32; save the file as UTF-8", line=1)


def _after_line_end(stream: Stream) -> bytes:
    while block := stream.read(CHUNK_BYTES):
        _, end, rest = block.partition(b"\n")
        if end:
            return rest
    return b""
