"""Shows single rows as they are trained, made in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from lehr.errors import InvalidArgument
from lehr.rpc.context import MESSAGE_BYTES_MAX
from lehr.samples.canonical import Located, read_canonical
from lehr.samples.length import Fitted, LengthCounts, Overlong, fit
from lehr.samples.selection import Sample, Samples
from lehr.samples.table import TokenTable
from lehr.samples.tabulate import tabulate
from lehr.samples.tokens import SampleTokenizer
from services.catalog.examination.pool import allow_seconds
from services.catalog.tokens.counting import Reading, apart, loaded

FIRST_ROWS = 5
"""Rows that are shown where nobody says which."""
SHOWN_BYTES_MAX = MESSAGE_BYTES_MAX - 2**20
_TOKEN_BYTES = 8
"""Most bytes of a token's number and mark, and of the frame around its text."""

Outcome = Literal["kept", "truncated", "dropped", "untrainable"]
_SIDES = ("chosen", "rejected")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Which rows of a dataset, and how long they may be."""

    lines: frozenset[int]
    """Empty for the first few."""
    file: int
    """Number of the file that the lines are counted in."""
    files: Sequence[str]
    """Names of all files of the dataset."""
    max_length: int
    """Tokens; 0 for no limit."""
    overlong: Overlong


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Preview:
    """One text of a row as it is trained."""

    line: int
    file: str
    text: str
    side: str
    """chosen or rejected; empty for rows with one answer."""
    token_count: int
    """Tokens before any cut."""
    sample: Sample
    """After any cut; of a row that is left out, what would have been kept of it."""
    tokens: list[str]
    outcome: Outcome


def look(path: Path, reading: Reading, rows: Rows) -> list[Preview]:
    """Return rows of a file of canonical rows exactly as they are trained.

    Raises:
        InvalidArgument: a line is not in the dataset, a row cannot be rendered, or they are more
            than an answer holds.
        CountingFailed: the process died of a row.
    """
    found: list[Preview] = apart(
        _look,
        (path, reading, rows),
        failure="a row needs more memory or time than there is, or breaks the tokenizer: "
        "split or remove it",
    )
    return found


def _look(asked: tuple[Path, Reading, Rows]) -> list[Preview]:
    path, reading, rows = asked
    allow_seconds(reading.seconds_max)
    found = list(_found(path, rows))
    missing = sorted(rows.lines - {one.line for one in found})
    if missing:
        raise InvalidArgument(f"the dataset has no row in line {missing[0]}")
    name = rows.files[rows.file] if len(rows.files) > 1 else ""
    tokenizer = loaded(reading)
    previews: list[Preview] = []
    left = SHOWN_BYTES_MAX
    for one in found:
        for preview in _previews(tokenizer, one, name, rows):
            left -= _size_bytes(preview)
            if left < 0:
                raise InvalidArgument(
                    f"rows to line {one.line} are more than an answer of {SHOWN_BYTES_MAX} bytes "
                    "holds; ask for fewer lines, or for a smaller max_length",
                    reason="PREVIEW_TOO_LARGE",
                    line=one.line,
                )
            previews.append(preview)
    return previews


def _found(path: Path, rows: Rows) -> Iterator[Located]:
    left = len(rows.lines) or FIRST_ROWS
    for one in read_canonical(path):
        if one.file == rows.file and (not rows.lines or one.line in rows.lines):
            yield one
            left -= 1
        if not left:
            return


def _previews(tokenizer: SampleTokenizer, row: Located, file: str, rows: Rows) -> Iterator[Preview]:
    table = tabulate([row], tokenizer)
    texts, length = tokenizer.render(row.row), int(table.lengths[0])
    limit = rows.max_length or length
    outcome = _outcome(fit(table, np.arange(1), max_length=limit, overlong=rows.overlong).counts)
    wholes, samples = _texts(table, length), _texts(table, limit)
    for text, side, whole, sample in zip(
        texts, _SIDES if len(texts) > 1 else ("",), wholes, samples, strict=True
    ):
        yield Preview(
            line=row.line,
            file=file,
            text=text.text,
            side=side,
            token_count=len(whole),
            sample=sample,
            tokens=tokenizer.pieces(sample),
            outcome=outcome,
        )


def _texts(table: TokenTable, limit: int) -> tuple[Sample, ...]:
    """Return the texts of a table's only row, as far as the limit and whole answers allow."""
    is_compared = len(table.segment_ends[0]) > 1
    longest_cut = int(table.segment_ends[0, 0]) if is_compared else int(table.lengths[0])
    cut = min(max(int(table.lengths[0]) - limit, 0), longest_cut)
    fitted = Fitted(rows=np.zeros(1, dtype=np.int64), cuts=np.array([cut]), counts=LengthCounts())
    samples = Samples(table, fitted)
    return samples.sides(0) if len(table.segment_ends[0]) == len(_SIDES) + 1 else (samples[0],)


def _outcome(counts: LengthCounts) -> Outcome:
    if counts.dropped:
        return "dropped"
    if counts.untrainable:
        return "untrainable"
    return "truncated" if counts.affected else "kept"


def _size_bytes(preview: Preview) -> int:
    texts = sum(len(token.encode("utf-8", "replace")) for token in preview.tokens)
    return len(preview.text.encode("utf-8", "replace")) + texts + _TOKEN_BYTES * len(preview.tokens)
