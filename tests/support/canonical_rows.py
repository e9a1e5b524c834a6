"""Canonical rows from plain objects, as the catalog writes them and trainers read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from lehr.samples.canonical import Located, to_line
from lehr.samples.rows import (
    ChatRow,
    PreferenceRow,
    PromptAnswerRow,
    PromptCompletionRow,
    Row,
    StepwiseRow,
    TextRow,
    UnpairedRow,
)
from lehr.samples.table import TokenTable
from lehr.samples.tabulate import tabulate
from lehr.samples.tokens import SampleTokenizer

#: A field that only rows of this kind have; the first that fits decides.
_KINDS: tuple[tuple[str, type[Row]], ...] = (
    ("messages", ChatRow),
    ("text", TextRow),
    ("chosen", PreferenceRow),
    ("label", UnpairedRow),
    ("completions", StepwiseRow),
    ("completion", PromptCompletionRow),
    ("answer", PromptAnswerRow),
)


def a_row(values: Mapping[str, Any]) -> Row:
    """Return the row that an object with a row's own fields describes."""
    row_type = next(row_type for field, row_type in _KINDS if field in values)
    more: dict[str, Any] = {"columns": {}} if row_type is PromptAnswerRow else {}
    return row_type(
        **more,
        **{name: tuple(one) if isinstance(one, list) else one for name, one in values.items()},
    )


def a_chat(*turns: tuple[str, str], **more: Any) -> ChatRow:
    """Return a chat of role and content."""
    messages = tuple({"role": role, "content": content} for role, content in turns)
    return ChatRow(messages=messages, **more)


def located(rows: Iterable[Row]) -> list[Located]:
    """Return rows as lines of one file, from 1."""
    return [Located(line=number, file=0, row=row) for number, row in enumerate(rows, start=1)]


def table_of(rows: Iterable[Row], tokenizer: SampleTokenizer) -> TokenTable:
    """Return the token table of rows of one kind; none at all are chats."""
    found = located(rows)
    return tabulate(found, tokenizer) if found else an_empty_table()


def an_empty_table() -> TokenTable:
    """Return a table without rows."""
    longs, ints = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    bytes_, keys = np.zeros(0, dtype=np.uint8), np.zeros((0, 16), dtype=np.uint8)
    return TokenTable(
        kind="messages",
        segment_ends=longs.reshape(0, 1),
        lines=longs,
        token_ids=ints,
        files=ints,
        images=ints,
        hidden=ints,
        trained_counts=ints,
        trained_ends=ints,
        trained=bytes_,
        labels=bytes_,
        keys=keys,
        prompt_keys=keys,
    )


def write_canonical(path: Path, rows: Iterable[Mapping[str, Any] | Row]) -> Path:
    """Write rows, or objects with their fields, as the catalog keeps them."""
    made = [a_row(row) if isinstance(row, Mapping) else row for row in rows]
    lines = b"".join(to_line(row, line=number, file=0) for number, row in enumerate(made, start=1))
    path.write_bytes(zstandard.compress(lines))
    return path
