"""Token ids of all rows of a dataset as a few flat arrays, at rest in one safetensors file.

The arrays are written as they are made and read by mapping the file, so that neither side ever
holds a dataset in memory.
"""

# N = rows, S = segments of a row, T = tokens of all rows

from __future__ import annotations

import json
import mmap
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lehr.errors import InvalidArgument

FORMAT = "1"
"""Version of the file; a reader of another one makes the table anew."""
STEP_WRONG, STEP_RIGHT = 1, 2
"""Values of ``trained`` at the end of a step of a ``stepwise`` row."""

#: Name, type and shape of a row's part (T stands for its tokens); largest items first, so that
#: every array begins at a multiple of its own item size.
_ARRAYS: dict[str, tuple[str, str]] = {
    "segment_ends": ("I64", "S"),
    "lines": ("I64", ""),
    "token_ids": ("I32", "T"),
    "files": ("I32", ""),
    "images": ("I32", ""),
    "hidden": ("I32", ""),
    "trained_counts": ("I32", ""),
    "trained_ends": ("I32", ""),
    "trained": ("U8", "T"),
    "labels": ("U8", ""),
    "keys": ("U8", "K"),
    "prompt_keys": ("U8", "K"),
}
_TYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
}
#: Prompt, chosen and rejected answer; prompt and answer.
_SEGMENTS = {"preference": 3, "unpaired_preference": 2}
_KEY_BYTES = 16
_HEADER_BYTES_MAX = 1 << 20


class TableUnreadable(InvalidArgument):
    """A file is no token table of this version."""

    reason = "TOKENS_UNREADABLE"


def segment_count(kind: str) -> int:
    """Return S: prompt and answers of kinds in which answers are never cut, else the whole row."""
    return _SEGMENTS.get(kind, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenTable:
    """Tokens of N rows before any cut; the arrays may be views of a mapped file."""

    kind: str
    """Kind of all rows, as in ``lehr.samples.rows``."""
    segment_ends: NDArray[np.int64]
    """Where each segment ends in the flat arrays, shape (N, S)."""
    lines: NDArray[np.int64]
    """Line or row number in the author's file, from 1."""
    token_ids: NDArray[np.int32]
    """Shape (T,)."""
    files: NDArray[np.int32]
    """Number of the author's file, from 0."""
    images: NDArray[np.int32]
    """Images of each row; a row that has one is never cut."""
    hidden: NDArray[np.int32]
    """Answers of each row that are left out of the loss because the template hides part of them."""
    trained_counts: NDArray[np.int32]
    """Tokens of each row that are trained."""
    trained_ends: NDArray[np.int32]
    """Where in its row the last trained token ends; 0 where none is."""
    trained: NDArray[np.uint8]
    """0 where a token is only read, shape (T,); in ``stepwise`` rows the verdict of a step."""
    labels: NDArray[np.uint8]
    """1 where the answer of an ``unpaired_preference`` row is wanted; 0 in other kinds."""
    keys: NDArray[np.uint8]
    """Digest of each row, shape (N, 16)."""
    prompt_keys: NDArray[np.uint8]
    """Digest of what the model is shown of each row, shape (N, 16)."""
    mapped: mmap.mmap | None = None
    """The file behind the arrays."""

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def begins(self) -> NDArray[np.int64]:
        """Where each row begins in the flat arrays."""
        return np.concatenate(([0], self.segment_ends[:-1, -1])).astype(np.int64)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row; of a preference, the prompt and the longer answer."""
        first: NDArray[np.int64] = self.segment_ends[:, 0] - self.begins
        return first + self.answer_lengths

    @property
    def answer_lengths(self) -> NDArray[np.int64]:
        """Tokens of each row's longest answer where answers are segments of their own, else 0."""
        longest: NDArray[np.int64] = np.diff(self.segment_ends, axis=1).max(axis=1, initial=0)
        return longest

    @classmethod
    def open(cls, path: Path) -> TokenTable:
        """Map a file that ``TableWriter`` wrote; it may be deleted while it is in use.

        Raises:
            TableUnreadable: it is no such file.
        """
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            metadata, header, body = _header(mapped)
            arrays = {
                name: _array(mapped, body, header[name], _TYPES[dtype])
                for name, (dtype, _) in _ARRAYS.items()
            }
            return cls(kind=metadata["kind"], mapped=mapped, **arrays)
        except (ValueError, KeyError, TypeError) as error:
            raise TableUnreadable(f"{path.name} is no token table: {error}") from error

    def release(self) -> None:
        """Give the memory of the mapped file back; it is read again where it is touched."""
        if self.mapped is not None:
            self.mapped.madvise(mmap.MADV_DONTNEED)


class TableWriter:
    """Writes a table chunk by chunk; the file appears whole or not at all."""

    def __init__(self, path: Path, *, kind: str) -> None:
        self._path = path
        self._kind = kind
        self._folder = path.with_name(f".{path.name}.parts")
        self._files: dict[str, BinaryIO] = {}
        self._tokens = 0
        self._rows = 0

    def __enter__(self) -> TableWriter:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._files = {name: (self._folder / name).open("w+b") for name in _ARRAYS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            for file in self._files.values():
                file.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def append(self, chunk: TokenTable) -> None:
        """Add rows.

        Raises:
            InvalidArgument: they are of another kind than those before.
        """
        if chunk.kind != self._kind:
            raise InvalidArgument(
                f"rows of kind {chunk.kind} lie among rows of kind {self._kind}",
                reason="KINDS_MIXED",
                kind=chunk.kind,
                wanted=self._kind,
            )
        for name, (dtype, _) in _ARRAYS.items():
            array = getattr(chunk, name)
            if name == "segment_ends":
                array = array + self._tokens
            self._files[name].write(np.ascontiguousarray(array, dtype=_TYPES[dtype]).data)
        self._tokens += len(chunk.token_ids)
        self._rows += len(chunk)

    def _finish(self) -> None:
        sizes = {"S": segment_count(self._kind), "K": _KEY_BYTES}
        header: dict[str, Any] = {"__metadata__": {"format": FORMAT, "kind": self._kind}}
        end = 0
        for name, (dtype, part) in _ARRAYS.items():
            shape = (
                [self._tokens] if part == "T" else [self._rows, *([sizes[part]] if part else [])]
            )
            begin, end = end, end + int(np.prod(shape)) * _TYPES[dtype].itemsize
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        partial = self._folder / "whole"
        with partial.open("wb") as whole:
            whole.write(len(raw).to_bytes(8, "little") + raw)
            for file in self._files.values():
                file.seek(0)
                shutil.copyfileobj(file, whole, 1 << 20)
        partial.replace(self._path)


def _header(mapped: mmap.mmap) -> tuple[dict[str, str], dict[str, Any], int]:
    length = int.from_bytes(mapped[:8], "little")
    if not 0 < length <= _HEADER_BYTES_MAX:
        raise ValueError("its header is too long")
    header = json.loads(mapped[8 : 8 + length])
    metadata = header.pop("__metadata__")
    if metadata["format"] != FORMAT:
        raise ValueError(f"its format is {metadata['format']}, not {FORMAT}")
    return metadata, header, 8 + length


def _array(
    mapped: mmap.mmap, body: int, told: dict[str, Any], dtype: np.dtype[Any]
) -> NDArray[Any]:
    begin, end = told["data_offsets"]
    count = (end - begin) // dtype.itemsize
    array = np.frombuffer(mapped, dtype=dtype, count=count, offset=body + begin)
    return array.reshape(told["shape"])
