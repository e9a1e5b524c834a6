"""Makes the token table of a dataset, with as many processes as the rows are worth."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lehr.errors import FailedPrecondition
from lehr.samples.canonical import from_line
from lehr.samples.table import TokenTable
from lehr.samples.tabulate import line_batches, tabulate_lines, write_chunks
from lehr.samples.tokens import SampleTokenizer
from services.catalog.examination.pool import Pool, ReaderDied


class CountingFailed(FailedPrecondition):
    """A row is too much for the tokenizer."""

    reason = "COUNTING_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How rows become tokens."""

    model_dir: Path
    template: str | None
    """Name of a bundled template; None for the model's own."""
    images: Path | None
    """Archive with the images of the rows."""

    def load(self) -> SampleTokenizer:
        """Read the tokenizer.

        Raises:
            InvalidArgument: the folder has no usable tokenizer, or it cannot follow the template.
        """
        return SampleTokenizer.load_bundled(self.model_dir, self.template, images=self.images)


def count(rows: Path, reading: Reading, out: Path, *, processes: int) -> None:
    """Write the token table of canonical rows to ``out``; memory does not grow with the rows.

    Raises:
        InvalidArgument: a row cannot be rendered.
        CountingFailed: a process died of a row.
    """
    batches = line_batches(rows)
    head = list(itertools.islice(batches, 2))
    if len(head) < 2:
        tokenizer = reading.load()
        write_chunks((tabulate_lines(lines, tokenizer) for lines in head), out)
        return
    with Pool(processes, heartbeat=_go_on) as pool:
        pool.context = reading
        try:
            write_chunks(
                (table for _, table in pool.each(_tabulate, itertools.chain(head, batches))), out
            )
        except ReaderDied as died:
            line = from_line(died.item[0]).line
            raise CountingFailed(
                f"a process died while it tokenised the rows from line {line}; a row there needs "
                "more memory than there is, or breaks the tokenizer: split or remove it",
                line=line,
            ) from died


def _tabulate(reading: Reading, lines: list[bytes]) -> Iterator[TokenTable]:
    yield tabulate_lines(lines, _loaded(reading))


@lru_cache(maxsize=1)
def _loaded(reading: Reading) -> SampleTokenizer:
    # Each core has a process of its own; threads beside it would only be in the way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return reading.load()


def _go_on() -> None:
    """Never end the work early: whoever asks next is glad of it."""
