"""Keys of rows on disk, and which rows are copies of earlier ones, in bounded memory."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lehr.samples.rows import KEY_BYTES
from services.catalog.domain.report import LINES_SHOWN, Copies

BUCKET_ROWS = 2**21
"""Rows that are sorted at once."""

KEYS = np.dtype([("row", "<u8", (KEY_BYTES // 8,)), ("prompt", "<u8", (KEY_BYTES // 8,))])
"""What ``keys.npy`` holds for each row, in their order."""

_SCAN_ROWS = 2**18
_LINE_BITS = 40


class KeyFile:
    """Writes ``keys.npy`` row by row, and finds the copies when all are there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places_path = path.with_name(f".{path.name}.places")
        self._file = path.open("w+b")
        self._places = self._places_path.open("w+b")
        self._count = 0
        self._header()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._places.close()
        self._places_path.unlink()

    def append(self, keys: bytes, lines: NDArray[np.int64], *, file: int) -> None:
        """Add rows: both keys of each, and the lines at which they are."""
        self._file.write(keys)
        self._places.write((lines + (file << _LINE_BITS)).tobytes())
        self._count += len(lines)

    def finish(self) -> None:
        """Write how many rows there are; nothing may be added any more."""
        self._header()
        self._file.flush()
        self._places.flush()

    def copies(self) -> tuple[list[Copies], int, int]:
        """Return the copies in each file, the rows that have copies, and all distinct rows."""
        counts: dict[int, int] = {}
        first: dict[int, NDArray[np.int64]] = {}
        copied = 0
        for places, rows in self._extra():
            copied += rows
            for file in np.unique(places >> _LINE_BITS).tolist():
                mine = places[places >> _LINE_BITS == file] & ((1 << _LINE_BITS) - 1)
                counts[file] = counts.get(file, 0) + len(mine)
                known = first.get(file, np.empty(0, np.int64))
                first[file] = np.sort(np.concatenate((known, mine)))[:LINES_SHOWN]
        told = [
            Copies(file=file, row_count=count, lines=tuple(first[file].tolist()))
            for file, count in sorted(counts.items())
        ]
        return told, copied, self._count - sum(counts.values())

    def _extra(self) -> Iterator[tuple[NDArray[np.int64], int]]:
        """Yield places of rows that equal an earlier one, and how many rows these copy."""
        buckets = -(-self._count // BUCKET_ROWS)
        for bucket in range(buckets):
            found = list(self._bucket(bucket, buckets))
            keys = np.concatenate([part for part, _ in found])
            places = np.concatenate([part for _, part in found])
            order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: the earliest comes first
            same = np.all(keys[order][1:] == keys[order][:-1], axis=1)
            begins = same & ~np.concatenate(([False], same[:-1]))
            if same.any():
                yield places[order[1:][same]], int(np.count_nonzero(begins))

    def _bucket(
        self, bucket: int, buckets: int
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
        """Yield keys and places of the rows of a bucket; equal rows are in the same one."""
        # Read, not mapped: pages of a mapped file would count as memory of this process.
        with self._path.open("rb") as keys_file, self._places_path.open("rb") as places_file:
            np.lib.format.read_magic(keys_file)
            np.lib.format.read_array_header_1_0(keys_file)
            for begin in range(0, self._count, _SCAN_ROWS):
                count = min(_SCAN_ROWS, self._count - begin)
                keys = np.fromfile(keys_file, KEYS, count)["row"]
                places = np.fromfile(places_file, np.int64, count)
                chosen = keys[:, 0] % np.uint64(buckets) == bucket
                yield keys[chosen], places[chosen]

    def _header(self) -> None:
        """Write the header of a numpy file; numpy leaves room in it for any number of rows."""
        self._file.seek(0)
        told = {"descr": np.lib.format.dtype_to_descr(KEYS), "fortran_order": False}
        np.lib.format.write_array_header_1_0(self._file, {**told, "shape": (self._count,)})
        self._file.seek(0, 2)
