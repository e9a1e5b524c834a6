"""Makes the token table of a dataset, with as many processes as the rows are worth."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from lehr.errors import FailedPrecondition
from lehr.samples.canonical import from_line
from lehr.samples.table import TokenTable
from lehr.samples.tabulate import line_batches, tabulate_lines, write_chunks
from lehr.samples.tokens import SampleTokenizer
from services.catalog.examination.pool import Pool, ReaderDied, allow_seconds

SECONDS_MAX = 60
"""Processor time that a megabyte of rows may take; ordinary ones take about a second."""


class CountingFailed(FailedPrecondition):
    """A row is too much for the tokenizer, or for the chat template."""

    reason = "COUNTING_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How rows become tokens."""

    model_dir: Path
    template: str | None
    """Name of a bundled template; None for the model's own."""
    images: Path | None
    """Archive with the images of the rows."""
    seconds_max: int = SECONDS_MAX
    """Processor time for a megabyte of rows, and for a look at a few of them."""

    def load(self) -> SampleTokenizer:
        """Read the tokenizer.

        Raises:
            InvalidArgument: the folder has no usable tokenizer, or it cannot follow the template.
        """
        return SampleTokenizer.load_bundled(self.model_dir, self.template, images=self.images)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What is known of the tokens that a reading makes."""

    digest: str
    """That of all that the tokens depend on, but for dates."""
    prints_dates: bool


def describe(reading: Reading) -> Described:
    """Return what a reading's tokens depend on, found in a process of its own.

    Raises:
        InvalidArgument: as ``Reading.load``.
        CountingFailed: the process died of it.
    """
    found: Described = apart(
        _describe,
        reading,
        failure="the model's tokenizer or chat template needs more memory or time than there is; "
        "use another model",
    )
    return found


def apart(function: Callable[[Any], Any], argument: Any, *, failure: str) -> Any:
    """Return what ``function`` of a module returns, run in a process that may die of it.

    A chat template and a tokenizer may wait for the row that they do harm with, so what was seen
    of them before proves nothing.

    Raises:
        CountingFailed: it died, or had no memory left; the message is ``failure``.
    """
    with Pool(1, heartbeat=_go_on) as pool:
        try:
            return pool.call(function, argument)
        except (ReaderDied, MemoryError) as died:
            raise CountingFailed(failure) from died


def count(rows: Path, reading: Reading, out: Path, *, processes: int) -> None:
    """Write the token table of canonical rows to ``out``; memory does not grow with the rows.

    Raises:
        InvalidArgument: a row cannot be rendered.
        CountingFailed: a process died of a row.
    """
    with Pool(processes, heartbeat=_go_on) as pool:
        pool.context = reading
        try:
            write_chunks((table for _, table in pool.each(_tabulate, line_batches(rows))), out)
        except ReaderDied as died:
            raise _too_much(died.item) from died


def loaded(reading: Reading) -> SampleTokenizer:
    """Return the tokenizer; in a process of a pool, which reads it once.

    Raises:
        InvalidArgument: as ``Reading.load``.
    """
    # Each core has a process of its own; threads beside it would only be in the way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return _loaded(reading)


def _tabulate(reading: Reading, lines: list[bytes]) -> Iterator[TokenTable]:
    allow_seconds(reading.seconds_max * math.ceil(sum(map(len, lines)) / 2**20))
    try:
        yield tabulate_lines(lines, loaded(reading))
    except MemoryError:
        raise _too_much(lines) from None


def _too_much(lines: Sequence[bytes]) -> CountingFailed:
    line = from_line(lines[0]).line
    return CountingFailed(
        f"a process died while it tokenised the rows from line {line}; a row there needs more "
        "memory or time than there is, or breaks the tokenizer: split or remove it",
        line=line,
    )


def _describe(reading: Reading) -> Described:
    allow_seconds(reading.seconds_max)
    tokenizer = loaded(reading)
    return Described(digest=tokenizer.digest, prints_dates=tokenizer.prints_dates)


@lru_cache(maxsize=1)
def _loaded(reading: Reading) -> SampleTokenizer:
    return reading.load()


def _go_on() -> None:
    """Never end the work early: whoever asks next is glad of it."""
