"""Read JSON lines of a dataset into rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from lehr.errors import InvalidArgument
from lehr.samples.checks import parse_json, type_name, wrong
from lehr.samples.images import StoreImage
from lehr.samples.layouts import recognise
from lehr.samples.rows import Row

_NO_COLUMNS: Mapping[str, str] = MappingProxyType({})


def read_row(
    line: str,
    *,
    number: int,
    columns: Mapping[str, str] = _NO_COLUMNS,
    images: StoreImage | None = None,
) -> Row:
    """Read line ``number`` (from 1) of a dataset; ``columns`` and ``images`` as in ``recognise``.

    Raises:
        InvalidArgument: the line is no row; the message names the line, the field and the cure.
    """
    try:
        found = parse_json(line)
        if not isinstance(found, dict):
            raise wrong("", f"is {type_name(found)}; write one JSON object a line")
        return recognise(found, columns=columns, images=images)[0]
    except InvalidArgument as error:
        raise _located(error, number) from error


def read_rows(path: Path) -> Iterator[Row]:
    """Read a JSON lines file row by row, blank lines left out.

    Raises:
        InvalidArgument: the first line that is no row.
    """
    for number, line in lines_of(path):
        yield read_row(line, number=number)


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line that is not blank.

    Raises:
        InvalidArgument: a line is not UTF-8.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise _located(wrong("", f"is not UTF-8 at byte {error.start}"), number) from error
            if line:
                yield number, line


def _located(error: InvalidArgument, number: int) -> InvalidArgument:
    field = error.facts.get("field", "")
    located = InvalidArgument(
        f"line {number}{', ' if field else ': '}{error.message}",
        reason=error.reason,
        fields=error.fields,
    )
    located.facts = {**error.facts, "line": str(number)}
    return located
