"""The log of a part: its end, what is added, and keeping it short."""

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

_CHUNK_BYTES = 64 * 1024
_FOLLOW_EVERY_SECONDS = 0.2
_BYTES_MAX = 32 * 1024 * 1024


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a file, oldest first; none if there is no file."""
    if count <= 0 or not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(0, 2)
        position, tail = file.tell(), b""
        while position > 0 and tail.count(b"\n") <= count:
            start = max(0, position - _CHUNK_BYTES)
            file.seek(start)
            tail = file.read(position - start) + tail
            position = start
    return [line.decode(errors="replace") for line in tail.splitlines()[-count:]]


class Follower:
    """Reads what is added to a file from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def fresh(self) -> list[str]:
        """Return the whole lines added since the last call.

        A file that was cut or replaced is read on from its new beginning.
        """
        size = self._path.stat().st_size if self._path.exists() else 0
        if size < self._position:
            self._position, self._rest = 0, b""
        if size == self._position:
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            added = file.read(size - self._position)
        self._position += len(added)
        *lines, self._rest = (self._rest + added).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


def read_logs(paths: Mapping[str, Path], *, follow: bool, lines: int) -> Iterator[str]:
    """Yield the last lines of each log, then with ``follow`` what is added, for ever.

    Where there are several, each line has the name of its log in front.
    """
    width = max((len(name) for name in paths), default=0)

    def shown(name: str, line: str) -> str:
        return line if len(paths) == 1 else f"{name:<{width}} | {line}"

    followers = {name: Follower(path) for name, path in paths.items()} if follow else {}
    for name, path in paths.items():
        yield from (shown(name, line) for line in last_lines(path, lines))
    while followers:
        for name, follower in followers.items():
            yield from (shown(name, line) for line in follower.fresh())
        time.sleep(_FOLLOW_EVERY_SECONDS)


def cut(path: Path, *, bytes_max: int = _BYTES_MAX) -> None:
    """Move a log that grew too long aside, keeping one older piece.

    The process goes on writing to the same file, which it has open for appending; a line written
    between the two steps is lost.
    """
    if path.exists() and path.stat().st_size > bytes_max:
        shutil.copyfile(path, path.with_name(path.name + ".1"))
        with path.open("r+b") as file:
            file.truncate(0)
