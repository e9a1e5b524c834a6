"""Lines out of a stream of bytes: bounded, whole characters only, secrets masked."""

from __future__ import annotations

from services.trainer_runner.agent.masking import Masker

LINE_BYTES_MAX = 64 * 1024


class Lines:
    """Cuts what a pipe delivers into lines, whatever its chunk borders are.

    A line longer than the limit is delivered in pieces, none of which splits a character.
    """

    def __init__(self, *, masker: Masker, limit: int = LINE_BYTES_MAX) -> None:
        self._masker = masker
        self._limit = limit
        # A secret that straddles the cut of a long line is seen whole before the cut is made.
        self._hold = limit + masker.longest
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes; return the lines that they complete."""
        *whole, rest = data.split(b"\n")
        found: list[str] = []
        for end in whole:
            self._rest += end
            found += self._pieces(is_whole=True)
        self._rest += rest
        return found + self._pieces(is_whole=False)

    def close(self) -> list[str]:
        """Return what is left at the end of the stream."""
        return self._pieces(is_whole=True) if self._rest else []

    def _pieces(self, *, is_whole: bool) -> list[str]:
        found: list[bytes] = []
        if len(self._rest) > self._hold or (is_whole and len(self._rest) > self._limit):
            self._rest = bytearray(self._masker.mask(bytes(self._rest)))
            while len(self._rest) > (self._limit if is_whole else self._hold):
                cut = _before_character(self._rest, self._limit)
                found.append(bytes(self._rest[:cut]))
                del self._rest[:cut]
        if is_whole:
            found.append(bytes(self._rest.removesuffix(b"\r")))
            self._rest.clear()
        return [text_of(self._masker.mask(piece)) for piece in found]


def text_of(line: bytes) -> str:
    r"""Decode UTF-8; bytes that are none are shown as ``\xff`` in this line only."""
    return line.decode("utf-8", errors="backslashreplace")


def _before_character(data: bytearray, cut: int) -> int:
    """Move a cut back to the beginning of a character; at most three bytes."""
    for back in range(4):
        if data[cut - back] & 0xC0 != 0x80:
            return cut - back
    # Not UTF-8 at all.
    return cut
