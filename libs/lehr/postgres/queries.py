"""Named statements of a ``queries.sql`` file, so that Python holds no SQL."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"-- ([a-z][a-z0-9_]*)\(([^()]*)\)\s*")
_STARTS = re.compile(r"-- [a-z][a-z0-9_]*\([^()]*")
_PARAMETER = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One statement with its name line, ``-- name(parameter, ...)``, and its purpose."""

    name: str
    parameters: tuple[str, ...]
    """What $1, $2 ... are, in order."""
    purpose: str
    sql: str


class Queries(Mapping[str, str]):
    """The statements of one file by name: ``queries["save_job"]``."""

    def __init__(self, queries: Mapping[str, Query]) -> None:
        self.described = queries

    @classmethod
    def load(cls, path: Path) -> "Queries":
        """Read a file; a nameless, purposeless or doubled statement is our mistake: ValueError."""
        queries: dict[str, Query] = {}
        for line, block in _blocks(path):
            try:
                query = _parse(block)
                if query.name in queries:
                    raise ValueError(f"{query.name} is defined twice")
            except ValueError as error:
                raise ValueError(f"{path}:{line}: {error}") from None
            queries[query.name] = query
        return cls(queries)

    def __getitem__(self, name: str) -> str:
        return self.described[name].sql

    def __iter__(self) -> Iterator[str]:
        return iter(self.described)

    def __len__(self) -> int:
        return len(self.described)


def _blocks(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Cut a file before each name line; what stands above the first is the file's comment."""
    block: list[str] = []
    start = 0
    body = True
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        # A purpose may look like a name line, but it never follows a statement.
        if body and _STARTS.match(line):
            if block:
                yield start, block
            block, start, body = [line], number, False
        elif block:
            block.append(line)
            body = body or bool(line.strip() and not line.startswith("--"))
        elif line.strip() and not line.startswith("--"):
            raise ValueError(f"{path}:{number}: a statement before the first name line")
    if block:
        yield start, block


def _parse(block: list[str]) -> Query:
    head, rest = block[0], block[1:]
    while ")" not in head and rest and rest[0].startswith("--"):
        head, rest = f"{head} {rest[0].removeprefix('--').strip()}", rest[1:]
    name = _NAME.fullmatch(head)
    if name is None:
        raise ValueError(f"{head!r} is not a name line: write -- name(parameter, ...)")
    purpose: list[str] = []
    while rest and rest[0].startswith("--"):
        purpose.append(rest.pop(0).removeprefix("--").strip())
    sql = "\n".join(rest).strip()
    parameters = tuple(word.strip() for word in name[2].split(",") if word.strip())
    if not purpose:
        raise ValueError(f"{name[1]} has no line of purpose")
    if not sql.endswith(";"):
        raise ValueError(f"{name[1]} does not end with a semicolon")
    used = {int(number) for number in _PARAMETER.findall(sql)}
    if used != set(range(1, len(parameters) + 1)):
        raise ValueError(f"{name[1]} names {len(parameters)} parameters and uses {sorted(used)}")
    return Query(name=name[1], parameters=parameters, purpose=" ".join(purpose), sql=sql[:-1])
