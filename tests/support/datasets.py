"""Datasets for tests: rows written in any format, and what their examination says."""

import csv
import gzip
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard
from PIL import Image
from pyarrow import feather, ipc, parquet

from lehr.samples.canonical import Located, read_canonical
from services.catalog.domain.entries import RowProblem
from services.catalog.examination import Examination, examine
from services.catalog.formats.source import Limits, SourceFile

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Examined:
    """An examination and the folder with what it wrote."""

    found: Examination
    folder: Path

    @property
    def rows(self) -> list[Located]:
        """The canonical rows."""
        return list(read_canonical(self.folder / "rows.jsonl.zst"))

    @property
    def problems(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Reason of each kind of problem, with its rows and lines."""
        return {one.reason: (one.row_count, one.lines) for one in self.found.problems}

    @property
    def only(self) -> RowProblem:
        """The one problem."""
        [problem] = self.found.problems
        return problem

    @property
    def images(self) -> list[str]:
        """Names of the images that were kept."""
        if self.found.images_file is None:
            return []
        with zipfile.ZipFile(self.folder / "images.zip") as archive:
            return archive.namelist()


def examined(
    tmp_path: Path,
    files: Mapping[str, bytes | str],
    *,
    columns: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] = lambda _, __: None,
    processes: int = 1,
) -> Examined:
    """Write files and have them examined."""
    sources = []
    for number, (name, content) in enumerate(files.items()):
        path = tmp_path / f"in-{number}"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        sources.append(SourceFile(name=name, path=path))
    folder = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    found = examine(
        sources,
        columns=columns or {},
        out_dir=folder,
        processes=processes,
        progress=progress,
        limits=limits or Limits(),
    )
    return Examined(found=found, folder=folder)


def chat(question: str, answer: str, **columns: Any) -> dict[str, Any]:
    """Return a row of messages."""
    turns = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
    ]
    return {"messages": turns, **columns}


def jsonl(rows: Rows) -> bytes:
    """Write rows as JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def separated(rows: Rows, delimiter: str = ",") -> bytes:
    """Write rows as a table of text, nested values as JSON."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerow(rows[0])
    writer.writerows(
        [cell if isinstance(cell, str) else json.dumps(cell) for cell in row.values()]
        for row in rows
    )
    return out.getvalue().encode()


def parquet_of(rows: Rows, **options: Any) -> bytes:
    """Write rows as parquet."""
    out = io.BytesIO()
    parquet.write_table(table(rows), out, **options)
    return out.getvalue()


def arrow_of(rows: Rows, *, stream: bool = False, batch_rows: int = 7) -> bytes:
    """Write rows as an arrow file or stream."""
    out = io.BytesIO()
    made = table(rows)
    new = ipc.new_stream if stream else ipc.new_file
    with new(out, made.schema) as writer:
        writer.write_table(made, max_chunksize=batch_rows)
    return out.getvalue()


def feather_of(rows: Rows) -> bytes:
    """Write rows as a feather file, compressed."""
    out = io.BytesIO()
    feather.write_feather(table(rows), out, compression="zstd")
    return out.getvalue()


def table(rows: Rows) -> pa.Table:
    """Return rows as a table of columns."""
    return pa.Table.from_pylist([dict(row) for row in rows])


def zipped(members: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Pack files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def zst(data: bytes) -> bytes:
    """Compress with zstandard."""
    return zstandard.ZstdCompressor().compress(data)


def image(kind: str = "PNG", color: str = "red", side: int = 8) -> bytes:
    """Return an image."""
    out = io.BytesIO()
    Image.new("RGB", (side, side), color).save(out, kind)
    return out.getvalue()


def packed(rows: Rows) -> dict[str, dict[str, bytes]]:
    """Return the same rows in every format: of each, files by name."""
    lines = jsonl(rows)
    half = len(rows) // 2
    return {
        "jsonl": {"a.jsonl": lines},
        "jsonl with a mark and windows line ends": {
            "a.jsonl": b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n")
        },
        "jsonl without a last line end": {"a.ndjson": lines.rstrip()},
        "json": {"a.json": json.dumps(rows).encode()},
        "json over lines": {"a.json": json.dumps(rows, indent=2).encode()},
        "json object": {"a.json": json.dumps({"version": 1, "data": rows, "tags": []}).encode()},
        "json that is lines": {"a.json": lines},
        "jsonl that is an array": {"a.jsonl": json.dumps(rows, indent=1).encode()},
        "csv": {"a.csv": separated(rows)},
        "tsv": {"a.tsv": separated(rows, "\t")},
        "parquet": {"a.parquet": parquet_of(rows)},
        "parquet in groups": {"a.parquet": parquet_of(rows, row_group_size=3)},
        "arrow": {"a.arrow": arrow_of(rows)},
        "arrow stream": {"a.arrow": arrow_of(rows, stream=True)},
        "feather": {"a.feather": feather_of(rows)},
        "gz": {"a.jsonl.gz": gzip.compress(lines)},
        "gz of two members": {
            "a.jsonl.gz": gzip.compress(lines[:50]) + gzip.compress(lines[50:]) + bytes(20)
        },
        "zst": {"a.jsonl.zst": zst(lines)},
        "zst of two frames": {"a.jsonl.zst": zst(lines[:50]) + zst(lines[50:])},
        "gz named jsonl": {"a.jsonl": gzip.compress(lines)},
        "parquet named jsonl": {"a.jsonl": parquet_of(rows)},
        "parquet in gz": {"a.parquet.gz": gzip.compress(parquet_of(rows))},
        "zip": {"a.zip": zipped({"a.jsonl": lines})},
        "zip of folders": {
            "a.zip": zipped(
                {
                    "data/": b"",
                    "data/train-0.jsonl": jsonl(rows[:half]),
                    "data/train-1.parquet": parquet_of(rows[half:]),
                    "__MACOSX/._train-0.jsonl": b"\0",
                    "data/.DS_Store": b"\0",
                }
            )
        },
        "zip of gz": {"a.zip": zipped({"a.csv.gz": gzip.compress(separated(rows))})},
        "zip named json": {"a.json": zipped({"a.jsonl": lines})},
        "two files": {"a.jsonl": jsonl(rows[:half]), "b.csv": separated(rows[half:])},
    }
