"""Parquet and arrow files, read in batches; only a process of the pool imports the library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lehr.samples.checks import first_twice
from lehr.samples.layouts import COLUMNS
from services.catalog.formats.errors import Broken
from services.catalog.formats.source import CHUNK_BYTES, Fault, Found

PARQUET, ARROW_FILE, ARROW_STREAM = "parquet", "arrow", "arrow_stream"
IMAGE_COLUMNS = frozenset({"image", "images"})
_STRUCT_NULLS = Fault(
    what="has objects in which the file fills keys that they have not with null; those are left"
    " out, as in JSON lines",
    reason="STRUCT_NULLS",
    is_error=False,
)
_GROUP_BYTES = 4 * CHUNK_BYTES
_BATCH_ROWS_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Parts of a columnar file that follow each other: row groups or record batches."""

    path: Path
    kind: str
    first: int
    """Number of the first row, from 1."""
    count: int
    """Rows in all; 0 where only reading tells."""
    parts: tuple[int, ...]
    """Which row groups or batches; empty for all."""
    batch_rows: int = _BATCH_ROWS_MAX
    used: frozenset[str] = frozenset()
    """Columns that the user's map names."""

    @property
    def last(self) -> int:
        """Number of the last row."""
        return self.first + max(0, self.count - 1)

    def rows(self) -> Iterator[tuple[int, Found]]:
        """Yield number and values by column of each row.

        Raises:
            Broken: the file is damaged, or a used column has a type that is no JSON.
        """
        number = self.first
        with _readable():
            for row, dropped in _rows(self):
                if dropped:
                    yield number, _STRUCT_NULLS
                yield number, row
                number += 1


def is_columnar(head: bytes) -> str | None:
    """Return the kind of a columnar file by how it begins."""
    if head.startswith(b"PAR1"):
        return PARQUET
    if head.startswith(b"ARROW1"):
        return ARROW_FILE
    # A stream begins with a mark of continuation and the length of its schema.
    if head.startswith(b"\xff\xff\xff\xff") and len(head) >= 8 and head[8:9] not in (b"", b"\0"):
        return ARROW_STREAM
    return None


def plan(what: tuple[Path, str, frozenset[str]]) -> tuple[tuple[Groups, ...], list[Fault]]:
    """Cut a file into parts of some megabytes, and look at its columns.

    Raises:
        Broken: the file is damaged, or a used column has a type that is no JSON.
    """
    with _readable():
        return _plan(*what)


def _plan(path: Path, kind: str, used: frozenset[str]) -> tuple[tuple[Groups, ...], list[Fault]]:
    with _Reader(path, kind) as reader:
        faults = [] if reader.schema is None else _Columns(reader.schema, used).faults
        if kind == ARROW_STREAM:
            whole = Groups(path=path, kind=kind, first=1, count=0, parts=(), used=used)
            return (whole,), faults
        sizes = reader.sizes()
    rows = sum(count for count, _ in sizes)
    weight = sum(size for _, size in sizes) / max(1, rows)
    batch_rows = max(1, min(_BATCH_ROWS_MAX, int(CHUNK_BYTES / max(1.0, weight))))
    found: list[Groups] = []
    first, parts, count, held = 1, list[int](), 0, 0
    for at, (group_rows, size) in enumerate(sizes):
        parts.append(at)
        count, held = count + group_rows, held + size
        if held >= _GROUP_BYTES or at == len(sizes) - 1:
            found.append(
                Groups(
                    path=path,
                    kind=kind,
                    first=first,
                    count=count,
                    parts=tuple(parts),
                    batch_rows=batch_rows,
                    used=used,
                )
            )
            first, parts, count, held = first + count, [], 0, 0
    return tuple(found), faults


@contextmanager
def _readable() -> Iterator[None]:
    """Tell in words what the library cannot read."""
    import pyarrow as pa  # noqa: PLC0415 - only a process of the pool holds it

    try:
        yield
    except (pa.ArrowMemoryError, MemoryError):
        raise MemoryError from None
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        told = " ".join(str(error).split())[:200]
        raise Broken("TABLE_BROKEN", f"is damaged: {told}; write it again") from None


class _Reader:
    """An open file of one of the kinds."""

    def __init__(self, path: Path, kind: str) -> None:
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow import ipc, parquet  # noqa: PLC0415

        self.kind = kind
        self._file = (pa.memory_map if kind == ARROW_FILE else pa.OSFile)(str(path))
        if kind == PARQUET:
            self._parquet = parquet.ParquetFile(
                self._file, buffer_size=2**20, pre_buffer=False, page_checksum_verification=True
            )
            self.schema = self._parquet.schema_arrow
        elif kind == ARROW_FILE:
            self._ipc = ipc.open_file(self._file)
            self.schema = self._ipc.schema
        else:
            self._ipc = ipc.open_stream(self._file)
            self.schema = self._ipc.schema

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *told: object) -> None:
        self._file.close()

    def sizes(self) -> list[tuple[int, int]]:
        """Return rows and bytes of each part."""
        if self.kind == PARQUET:
            told = self._parquet.metadata
            groups = map(told.row_group, range(told.num_row_groups))
            return [(group.num_rows, group.total_byte_size) for group in groups]
        batches = map(self._ipc.get_batch, range(self._ipc.num_record_batches))
        return [(batch.num_rows, batch.nbytes) for batch in batches]

    def batches(self, parts: Sequence[int], rows: int, columns: list[str]) -> Iterator[Any]:
        """Yield record batches of at most ``rows`` rows with the named columns."""
        if self.kind == PARQUET:
            yield from self._parquet.iter_batches(
                batch_size=rows, row_groups=list(parts), columns=columns, use_threads=False
            )
            return
        whole = map(self._ipc.get_batch, parts) if self.kind == ARROW_FILE else self._ipc
        for batch in whole:
            chosen = batch.select(columns)
            for begin in range(0, batch.num_rows, rows):
                yield chosen.slice(begin, rows)


def _rows(groups: Groups) -> Iterator[tuple[Mapping[str, Any], bool]]:
    with _Reader(groups.path, groups.kind) as reader:
        columns = _Columns(reader.schema, groups.used)
        for batch in reader.batches(groups.parts, groups.batch_rows, columns.names):
            yield from columns.rows(batch)


class _Columns:
    """Which columns can be rows of JSON, and how their values become such."""

    def __init__(self, schema: Any, used: frozenset[str]) -> None:
        twice = first_twice(schema.names)
        if twice is not None:
            raise Broken("TABLE_BROKEN", f"has the column {twice[:80]!r} twice")
        self.names: list[str] = []
        self.faults: list[Fault] = []
        for field in schema:
            image = field.name in IMAGE_COLUMNS or field.name in used
            odd = _odd_type(field.type, binary=image)
            if odd is None:
                self.names.append(field.name)
            elif field.name in used or (not used and field.name in COLUMNS):
                raise Broken(
                    "COLUMN_TYPE",
                    f"has the column {field.name} of type {odd}; only text, numbers, true and"
                    " false, lists and objects of these are read",
                )
            else:
                what = f"the column {field.name} is left out: {odd} is no JSON"
                self.faults.append(Fault(what=what, reason="COLUMN_LEFT_OUT", is_error=False))
        if not self.names:
            raise Broken("TABLE_BROKEN", "has no column that can be read")

    def rows(self, batch: Any) -> list[tuple[Mapping[str, Any], bool]]:
        """Return the rows of a record batch, and of each whether filled-in nulls were dropped."""
        columns = [
            [_clean(value) for value in batch.column(name).to_pylist(maps_as_pydicts="strict")]
            for name in self.names
        ]
        return [
            (
                {name: value for name, (value, _) in zip(self.names, cells, strict=True)},
                any(dropped for _, dropped in cells),
            )
            for cells in zip(*columns, strict=True)
        ]


def _clean(value: Any) -> tuple[Any, bool]:
    """Drop the nulls with which a column of objects fills the keys that an object has not.

    Returns the value, and whether there were any.
    """
    if isinstance(value, dict):
        cleaned = {key: _clean(inner) for key, inner in value.items() if inner is not None}
        dropped = len(cleaned) != len(value) or any(told for _, told in cleaned.values())
        return {key: inner for key, (inner, _) in cleaned.items()}, dropped
    if isinstance(value, list):
        items = [_clean(inner) for inner in value]
        return [inner for inner, _ in items], any(told for _, told in items)
    if isinstance(value, float) and not math.isfinite(value):
        # Tables write a missing number as one that is none.
        return None, False
    return value, False


def _odd_type(told: Any, *, binary: bool) -> str | None:
    """Return the first type in a column's type that is no JSON, or None."""
    from pyarrow import types  # noqa: PLC0415

    if types.is_dictionary(told):
        return _odd_type(told.value_type, binary=binary)
    if types.is_map(told):
        is_text = _is_text(told.key_type)
        return _odd_type(told.item_type, binary=binary) if is_text else str(told)
    if types.is_nested(told) and not types.is_union(told):
        inner = (told.field(at) for at in range(told.num_fields))
        odd = (_odd_type(one.type, binary=binary or one.name == "bytes") for one in inner)
        return next((one for one in odd if one is not None), None)
    if types.is_binary(told) or types.is_large_binary(told) or types.is_binary_view(told):
        return None if binary else str(told)
    simple = (types.is_boolean, types.is_integer, types.is_floating, types.is_null, _is_text)
    return None if any(test(told) for test in simple) else str(told)


def _is_text(told: Any) -> bool:
    from pyarrow import types  # noqa: PLC0415

    return bool(types.is_string(told) or types.is_large_string(told) or types.is_string_view(told))
