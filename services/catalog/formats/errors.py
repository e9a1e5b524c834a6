"""How a file that cannot be read is told."""

from typing import Any


class Broken(Exception):
    """A file, or the rest of it, cannot be read; ``what`` says what is wrong and what to do.

    ``line`` is where its rows end, in its own numbers; None where none were reached.
    """

    def __init__(self, reason: str, what: str, *, line: int | None = None) -> None:
        super().__init__(reason, what, line)
        self.reason = reason
        self.what = what
        self.line = line

    def __reduce__(self) -> Any:
        return _broken, (self.reason, self.what, self.line)


def _broken(reason: str, what: str, line: int | None) -> Broken:
    return Broken(reason, what, line=line)
