"""Streams of bytes: plain, gzip and zstandard, with a bound on what they may become."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

from services.catalog.formats.errors import Broken
from services.catalog.formats.source import CHUNK_BYTES

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGICS = (b"\x28\xb5\x2f\xfd", *(bytes([low]) + b"\x2a\x4d\x18" for low in range(0x50, 0x60)))
_READ_BYTES = 2**18
#: One block of 4 bytes may stand for 128 KiB, so this many bytes become 64 MiB at most.
_ZSTD_READ_BYTES = 2**11
_ZSTD_WINDOW_MAX = 2**27


class Stream(Protocol):
    """Bytes to read from front to back."""

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, fewer only at the end.

        Raises:
            Broken: the compressed bytes are damaged, or more than they may be.
        """
        ...

    @property
    def position(self) -> int:
        """Bytes of the source file that went through."""
        ...


class Plain:
    """A file as it lies on the disk."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._position = 0

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, fewer only at the end."""
        data = self._file.read(size)
        self._position += len(data)
        return data

    @property
    def position(self) -> int:
        """Bytes of the file that went through."""
        return self._position


class Expanded:
    """Bytes that come in pieces of any size, counted against a bound."""

    def __init__(self, source: Stream, pieces: Iterator[bytes], budget: "Budget") -> None:
        self._source = source
        self._pieces = pieces
        self._budget = budget
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, fewer only at the end."""
        parts, have = [self._rest], len(self._rest)
        while have < size and (piece := next(self._pieces, b"")):
            parts.append(piece)
            have += len(piece)
            self._budget.take(len(piece))
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]

    @property
    def position(self) -> int:
        """Bytes of the compressed file that went through."""
        return self._source.position


class Budget:
    """Bytes that one file may still expand to."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._left = bytes_max

    def take(self, size: int) -> None:
        """Count expanded bytes.

        Raises:
            Broken: they are too many.
        """
        self.check(size)
        self._left -= size

    def check(self, size: int) -> None:
        """Ask whether so many bytes are left.

        Raises:
            Broken: they are not.
        """
        if size > self._left:
            raise Broken(
                "EXPANDS_TOO_MUCH",
                f"expands to more than {self._bytes_max} bytes; give it without compression",
            )


def expand(source: Stream, head: bytes, budget: Budget) -> Stream:
    """Return the content of a gzip or zstandard stream that begins with ``head``."""
    pieces = _gzip(source) if head.startswith(GZIP_MAGIC) else _zstd(source)
    return Expanded(source, pieces, budget)


def is_compressed(head: bytes) -> bool:
    """Tell whether bytes begin as gzip or zstandard do."""
    return head.startswith((GZIP_MAGIC, *ZSTD_MAGICS))


class Rewound:
    """A stream of which the head has been looked at."""

    def __init__(self, head: bytes, rest: Stream) -> None:
        self.head = head
        """What of it is still to be read."""
        self._rest = rest

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, fewer only at the end."""
        head, self.head = self.head[:size], self.head[size:]
        return head if len(head) == size else head + self._rest.read(size - len(head))

    @property
    def position(self) -> int:
        """Bytes of the source file that went through."""
        return self._rest.position


def write_out(stream: Stream, path: Path) -> None:
    """Write a stream to a file."""
    with path.open("wb") as file:
        while data := stream.read(CHUNK_BYTES):
            file.write(data)


def _gzip(source: Stream) -> Iterator[bytes]:
    """Yield the content of all members; zeros after the last are padding, as in gzip(1)."""
    data = source.read(_READ_BYTES)
    while data := data or source.read(_READ_BYTES):
        if not data.startswith(GZIP_MAGIC[: len(data)]):
            yield from _padding(source, data)
            return
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            if not data and not (data := source.read(_READ_BYTES)):
                raise _damaged("gzip", "ends in the middle")
            try:
                piece = member.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                raise _damaged("gzip", f"is damaged ({error})") from None
            data = member.unconsumed_tail
            if piece:
                yield piece
        data = member.unused_data


def _padding(source: Stream, data: bytes) -> Iterator[bytes]:
    while data:
        if data.strip(b"\0"):
            raise _damaged("gzip", "goes on with other bytes after its end")
        data = source.read(_READ_BYTES)
    yield from ()


def _zstd(source: Stream) -> Iterator[bytes]:
    """Yield the content of all frames."""
    import zstandard  # noqa: PLC0415 - a service that is idle does not hold it

    reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    data = b""
    while data := data or source.read(_ZSTD_READ_BYTES):
        frame = reader.decompressobj()
        while not frame.eof:
            if not data and not (data := source.read(_ZSTD_READ_BYTES)):
                raise _damaged("zstandard", "ends in the middle")
            try:
                piece = frame.decompress(data)
            except zstandard.ZstdError as error:
                raise _damaged("zstandard", f"is damaged ({error})") from None
            data = b""
            for begin in range(0, len(piece), CHUNK_BYTES):
                yield piece[begin : begin + CHUNK_BYTES]
        data = frame.unused_data


def _damaged(kind: str, what: str) -> Broken:
    return Broken("COMPRESSION_BROKEN", f"the {kind} stream {what}; compress it again")
