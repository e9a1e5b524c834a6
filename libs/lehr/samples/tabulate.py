"""From canonical rows to token tables, a batch at a time; catalog and trainer share every step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lehr.errors import InvalidArgument
from lehr.samples.canonical import Located, from_line, lines_at_rest
from lehr.samples.rows import KEY_BYTES
from lehr.samples.table import TableWriter, TokenTable, segment_count
from lehr.samples.tokens import RowTokens, SampleTokenizer

BATCH_BYTES = 1 << 20
"""Text that is tokenised in one go; a batch ends with the row that reaches it."""


def line_batches(path: Path) -> Iterator[list[bytes]]:
    """Yield the lines of a file of canonical rows in batches of about ``BATCH_BYTES``."""
    batch: list[bytes] = []
    size_bytes = 0
    for line in lines_at_rest(path):
        batch.append(line)
        size_bytes += len(line)
        if size_bytes >= BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def tabulate_lines(lines: Sequence[bytes], tokenizer: SampleTokenizer) -> TokenTable:
    """Tokenise canonical lines of one kind, at least one; raises as ``tabulate``."""
    return tabulate(list(map(from_line, lines)), tokenizer)


def tabulate(rows: Sequence[Located], tokenizer: SampleTokenizer) -> TokenTable:
    """Tokenise rows of one kind, at least one.

    Raises:
        InvalidArgument: a row is of another kind than the first, or it cannot be rendered; facts
            name its line.
    """
    kind = rows[0].row.kind
    for one in rows:
        if one.row.kind != kind:
            raise _located(
                InvalidArgument(f"is of kind {one.row.kind}, not {kind}", reason="KINDS_MIXED"), one
            )
    try:
        encoded = tokenizer.encode([one.row for one in rows])
    except InvalidArgument as error:
        raise _located(error, rows[int(error.facts.pop("row", "0"))]) from error
    return _table(kind, rows, encoded)


def write_table(source: Path, tokenizer: SampleTokenizer, path: Path) -> None:
    """Tokenise a file of canonical rows to a table at ``path``, in bounded memory.

    Raises:
        InvalidArgument: as ``tabulate``, or there are no rows.
    """
    write_chunks((tabulate_lines(batch, tokenizer) for batch in line_batches(source)), path)


def write_chunks(chunks: Iterable[TokenTable], path: Path) -> None:
    """Write tables of one kind, one after the other, as a single table at ``path``."""
    following = iter(chunks)
    first = next(following, None)
    if first is None:
        raise InvalidArgument("the dataset has no rows", reason="NO_ROWS")
    with TableWriter(path, kind=first.kind) as writer:
        writer.append(first)
        for chunk in following:
            writer.append(chunk)


def _table(kind: str, rows: Sequence[Located], encoded: Sequence[RowTokens]) -> TokenTable:
    trained = np.concatenate([one.trained for one in encoded])
    lengths = np.array([len(one.token_ids) for one in encoded], dtype=np.int64)
    begins = np.cumsum(lengths) - lengths
    ends = np.array([one.segment_ends for one in encoded], dtype=np.int64)
    counts, last = _trained_per_row(trained, begins, lengths)
    return TokenTable(
        kind=kind,
        segment_ends=ends.reshape(len(rows), segment_count(kind)) + begins[:, None],
        lines=np.array([one.line for one in rows], dtype=np.int64),
        token_ids=np.concatenate([one.token_ids for one in encoded]),
        files=np.array([one.file for one in rows], dtype=np.int32),
        images=_counts(len(getattr(one.row, "images", ())) for one in rows),
        hidden=_counts(one.hidden_answer_count for one in encoded),
        trained_counts=counts,
        trained_ends=last,
        trained=trained,
        labels=np.array([getattr(one.row, "label", False) for one in rows], dtype=np.uint8),
        keys=_digests(one.row.key() for one in rows),
        prompt_keys=_digests(one.row.prompt_key() for one in rows),
    )


def _trained_per_row(
    trained: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return how many tokens of each row are trained, and where the last of them ends."""
    places = np.flatnonzero(trained)
    until = np.searchsorted(places, begins + lengths)
    counts = until - np.searchsorted(places, begins)
    last = np.zeros(len(begins), dtype=np.int64)
    has_any = counts > 0
    last[has_any] = places[until[has_any] - 1] + 1 - begins[has_any]
    return counts.astype(np.int32), last.astype(np.int32)


def _counts(values: Iterable[int]) -> NDArray[np.int32]:
    return np.fromiter(values, dtype=np.int32)


def _digests(keys: Iterable[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, KEY_BYTES)


def _located(error: InvalidArgument, row: Located) -> InvalidArgument:
    where = f"line {row.line}" + (f" of file {row.file + 1}" if row.file else "")
    located = InvalidArgument(f"{where}: {error.message}", reason=error.reason)
    located.facts = {**error.facts, "line": str(row.line), "file": str(row.file)}
    return located
