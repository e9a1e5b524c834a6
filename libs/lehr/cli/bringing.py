"""What the commands share that bring data and models into the catalog: options and progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import DownloadColumn, Progress, TaskID, TextColumn

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.cli.output import console
from lehr.errors import InvalidArgument

License = Annotated[str, typer.Option("--license", help="SPDX id of its licence.")]
Acknowledge = Annotated[
    bool,
    typer.Option(
        "--acknowledge-license",
        help="You may use it though its licence is unknown or non-commercial, and answer for it.",
    ),
]
Origin = Annotated[str, typer.Option(help="Where it comes from, in your words.")]
ThroughGateway = Annotated[
    bool,
    typer.Option(
        "--through-gateway", help="Send the bytes through the gateway, not to the object store."
    ),
]

DOING = {pb.ENTRY_STATE_IMPORTING: "importing", pb.ENTRY_STATE_VALIDATING: "checking"}


class ColumnsInvalid(InvalidArgument):
    """A column map is written wrong."""

    reason = "COLUMNS_INVALID"


@dataclass(slots=True)
class Bars:
    """Bars of an upload and of the check that follows."""

    _bars: Progress
    _bar: TaskID

    def sent(self, _: str, count: int) -> None:
        """Take into account what went through of a file."""
        self._bars.advance(self._bar, count)

    def checking(self, entry: pb.Dataset | pb.Model) -> None:
        """Show how far an import or a check is."""
        if entry.state not in DOING:
            return
        found = entry.progress
        rows = f"{found.row_count} rows" if found.row_count else ""
        self._bars.update(
            self._bar,
            description=DOING[entry.state],
            completed=found.done_bytes,
            total=found.total_bytes or None,
            rows=rows,
        )


@contextmanager
def bars(*, total: int | None, as_json: bool) -> Iterator[Bars]:
    """Show bars while the block lasts; JSON stands alone."""
    columns = (*Progress.get_default_columns(), DownloadColumn(), TextColumn("{task.fields[rows]}"))
    with Progress(*columns, console=console, transient=True, disable=as_json) as shown:
        yield Bars(shown, shown.add_task("uploading", total=total, rows=""))


def bytes_below(paths: list[Path]) -> int:
    """Return the bytes of files and of the files in folders."""
    found = [one for path in paths for one in (path.rglob("*") if path.is_dir() else [path])]
    return sum(one.stat().st_size for one in found if one.is_file())


def column_map(given: list[str]) -> dict[str, str]:
    """Read ``canonical=theirs`` options.

    Raises:
        ColumnsInvalid: one is none, or a field is mapped twice.
    """
    columns: dict[str, str] = {}
    for one in given:
        field, equals, column = one.partition("=")
        if not (field and equals and column) or field in columns:
            raise ColumnsInvalid(
                f"--column {one!r}: write canonical=theirs, each field once, such as"
                " --column prompt=question"
            )
        columns[field] = column
    return columns


def show_terms(entry: pb.Dataset | pb.Model, tell: Callable[[str], None]) -> None:
    """Tell licence and source of an entry."""
    who = entry.license_acknowledged_by
    answered = f", acknowledged by {who}" if who else ""
    source = " ".join(filter(None, (entry.source.kind, entry.source.origin, entry.source.commit)))
    tell(f"licence {entry.license or 'unknown'}{answered}; from {source or 'upload'}")
