"""How commands talk: tables for people, JSON for programs, errors that say what to do."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lehr.api.common.v1.common_pb2 import Money as MoneyMessage
from lehr.client import AsyncClient
from lehr.errors import InvalidArgument, PlatformError
from lehr.money import Money

T = TypeVar("T")

_LINE = re.compile(r"line \d+: ")


class FileFault(InvalidArgument):
    """A file or folder of the caller cannot be read or written."""

    reason = "FILE_FAULT"


# What people and services wrote is shown to the letter: `:warning:` stays what it is.
console = Console(highlight=False, emoji=False)
errors = Console(stderr=True, highlight=False, emoji=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def run(work: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
    """Run ``work`` with a client; a refusal is printed and ends the command with status 1."""

    async def connected() -> T:
        async with AsyncClient() as client:
            return await work(client)

    try:
        return asyncio.run(connected())
    except PlatformError as error:
        fail(error)
    except BrokenPipeError:
        # The reader of our output has left; click ends quietly.
        raise
    except OSError as error:
        fail(FileFault(f"{error.filename or 'a file'}: {error.strerror or error}"))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def fail(error: PlatformError) -> NoReturn:
    """Print what is wrong and end the command with status 1.

    Raises:
        typer.Exit: always.
    """
    errors.print(f"[bold red]error[/] [dim]{error.reason}[/]", end=" ")
    errors.print(str(error), markup=False, soft_wrap=True)
    if isinstance(error, InvalidArgument):
        told = str(error)
        for one in error.fields:
            if _LINE.sub("", one.description, count=1) not in told:
                errors.print(f"  {one.field}: {one.description}", markup=False, soft_wrap=True)
    raise typer.Exit(1) from None


def print_json(value: Message | Sequence[Message] | Any) -> None:
    """Print a message, or several, as JSON with the field names of the protos."""
    console.out(json.dumps(plain(value), indent=2, allow_nan=False), highlight=False)


def print_json_line(value: Message | dict[str, Any]) -> None:
    """Print one of many as JSON in one line."""
    console.out(json.dumps(plain(value), allow_nan=False), highlight=False)


def plain(value: Any) -> Any:
    """Turn messages into plain values."""
    if isinstance(value, Message):
        return MessageToDict(
            value, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    return value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; numbers go to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    kept = [tuple(row) for row in rows]
    for index, column in enumerate(columns):
        is_number = bool(kept) and all(isinstance(row[index], int | float) for row in kept)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in kept:
        # Text of users is never markup.
        table.add_row(*(Text(_cell(value)) for value in row))
    console.print(table)


def money(amount: MoneyMessage) -> str:
    """Show an amount exactly."""
    if not amount.currency_code:
        return "-"
    return str(Money(amount.currency_code, amount.micros))


def when(stamp: Timestamp) -> str:
    """Show a time in UTC; a dash where there is none."""
    if not stamp.seconds:
        return "-"
    return stamp.ToDatetime(tzinfo=UTC).strftime("%Y-%m-%d %H:%M:%S")


def size(count: int) -> str:
    """Show bytes with a binary unit."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def clock(seconds: float) -> str:
    """Show seconds as minutes and seconds, or hours."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
