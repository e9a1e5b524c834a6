"""Files that nobody should send: each gets a named problem, and none ends the examination."""

import gzip
import io
import json
import stat
import struct
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from services.catalog.formats.source import ROW_BYTES_MAX, Limits
from tests.support.datasets import (
    arrow_of,
    chat,
    examined,
    jsonl,
    parquet_of,
    separated,
    zipped,
    zst,
)

ROWS = [{"prompt": f"q{at}", "completion": f"a{at}"} for at in range(4)]
GOOD = jsonl(ROWS)
PARQUET = parquet_of(ROWS)


def links() -> bytes:
    """Return an archive with a link in it."""
    info = zipfile.ZipInfo("a.jsonl")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(info, "/etc/passwd")
    return out.getvalue()


def encrypted() -> bytes:
    """Return an archive whose file says that it is encrypted."""
    raw = bytearray(zipped({"a.jsonl": GOOD}, zipfile.ZIP_STORED))
    raw[6] |= 1
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    return bytes(raw)


def twice() -> bytes:
    """Return an archive with two files of one name."""
    raw = zipped({"a.jsonl": GOOD, "b.jsonl": GOOD}, zipfile.ZIP_STORED)
    return raw.replace(b"b.jsonl", b"a.jsonl")


def damaged(raw: bytes, at: float = 0.5) -> bytes:
    """Return bytes of which one is another."""
    place = int(len(raw) * at)
    return raw[:place] + bytes([raw[place] ^ 0xFF]) + raw[place + 1 :]


def table_of(**columns: Any) -> bytes:
    """Return a parquet file of arrays."""
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out)
    return out.getvalue()


def columns_of_one_name() -> bytes:
    """Return a parquet file with two columns of one name."""
    out = io.BytesIO()
    parquet.write_table(pa.Table.from_arrays([["a"], ["b"]], names=["text", "text"]), out)
    return out.getvalue()


#: Name: file, content, reason, words of the description, lines.
BROKEN: dict[str, tuple[str, bytes, str, str, tuple[int, ...]]] = {
    "empty": ("a.jsonl", b"", "NO_ROWS", "no rows", (1,)),
    "blank": ("a.jsonl", b" \n\t\n\n", "NO_ROWS", "no rows", (1,)),
    "only a mark": ("a.csv", b"\xef\xbb\xbf", "NO_ROWS", "no rows", (1,)),
    "only a header": ("a.csv", b"prompt,completion\n", "NO_ROWS", "no rows", (1,)),
    "an empty array": ("a.json", b"[ ]", "NO_ROWS", "no rows", (1,)),
    "utf-16": ("a.jsonl", GOOD.decode().encode("utf-16"), "ENCODING", "UTF-16", (1,)),
    "utf-16 csv": ("a.csv", "a,b\n".encode("utf-16"), "ENCODING", "UTF-16", (1,)),
    "utf-16 json": ("a.json", "[]".encode("utf-16"), "ENCODING", "UTF-16", (1,)),
    "no text": ("a.bin", b"\x00\x01\x02", "FORMAT_UNKNOWN", "no format", ()),
    "prose": ("a.txt", b"Hello there", "FORMAT_UNKNOWN", "no format", ()),
    "no parquet": ("a.parquet", b"Hello", "FORMAT_UNKNOWN", "no parquet file", ()),
    "bad bytes": ("a.jsonl", GOOD + b"\xff\xfe{\n", "ROW_INVALID", "UTF-8", (5,)),
    "bad bytes in csv": ("a.csv", separated(ROWS) + b"x\xff,y\n", "ROW_INVALID", "UTF-8", (5,)),
    "bad bytes in json": ("a.json", b'[{"text": "\xff"}]', "ROW_INVALID", "UTF-8", (1,)),
    "not json": ("a.jsonl", GOOD + b"{'a': 1}\n", "ROW_INVALID", "not JSON", (5,)),
    "raw nul": ("a.jsonl", GOOD + b'{"text": "a\0b"}\n', "ROW_INVALID", "not JSON", (5,)),
    "deep": ("a.jsonl", GOOD + b"[" * 10**5 + b"\n", "ROW_INVALID", "deep", (5,)),
    "deep json": ("a.json", b"[" + b"[" * 10**5 + b"]" * 10**5 + b"]", "ROW_INVALID", "deep", (1,)),
    "array cut off": ("a.json", b'[{"text": "a"}, {"te', "JSON_BROKEN", "byte 21", (2,)),
    "array without comma": ("a.json", b'[{"text": "a"} {}]', "JSON_BROKEN", "byte 16", (2,)),
    "array with a last comma": ("a.json", b'[{"text": "a"},]', "JSON_BROKEN", "byte 16", (2,)),
    "wrong bracket": ("a.json", b'[{"text": ["a"}]', "JSON_BROKEN", "byte 15", (1,)),
    "after the array": ("a.json", b'[{"text": "a"}] x', "JSON_BROKEN", "byte 17", (2,)),
    "open text": ("a.json", b'[{"text": "a', "JSON_BROKEN", "inside a text", (1,)),
    "element no json": ("a.json", b'[{"text" "a"}]', "ROW_INVALID", "not JSON", (1,)),
    "element no object": ("a.json", b"[7]", "ROW_INVALID", "number", (1,)),
    "no list of rows": ("a.json", b'{\n"a": 1, "b": [2]}', "JSON_BROKEN", "'a', 'b'", (1,)),
    "two lists of rows": (
        "a.json",
        b'{"a": [{"text": "a"}], "b": [{"text": "b"}]}',
        "JSON_BROKEN",
        "two lists",
        (2,),
    ),
    "one row over lines": (
        "a.json",
        json.dumps(chat("q", "a"), indent=1).encode(),
        "JSON_BROKEN",
        "without a list of rows; its keys: 'messages'",
        (1,),
    ),
    "ragged": ("a.csv", separated(ROWS) + b"a\n", "ROW_INVALID", "1 field where", (5,)),
    "ragged longer": ("a.csv", separated(ROWS) + b"a,b,c\n", "ROW_INVALID", "3 fields", (5,)),
    "open quote": ("a.csv", separated(ROWS) + b'"a,b\n', "ROW_INVALID", "quotes", (5,)),
    "odd quote": ("a.csv", separated(ROWS) + b'"a"b,c\n', "ROW_INVALID", "quotes", (5,)),
    "column twice": ("a.csv", b"text,text\na,b\n", "TABLE_BROKEN", "twice", (1,)),
    "column without name": ("a.csv", b"text,\na,b\n", "TABLE_BROKEN", "name", (1,)),
    "semicolons": ("a.csv", b"prompt;completion\na;b\n", "TABLE_BROKEN", "semicolon", (1,)),
    "tsv of commas": ("a.tsv", b"prompt,completion\na,b\n", "TABLE_BROKEN", "comma", (1,)),
    "gz cut off": ("a.jsonl.gz", gzip.compress(GOOD)[:-9], "COMPRESSION_BROKEN", "middle", ()),
    "gz damaged": ("a.jsonl.gz", damaged(gzip.compress(GOOD)), "COMPRESSION_BROKEN", "gzip", ()),
    "gz goes on": ("a.jsonl.gz", gzip.compress(GOOD) + b"x", "COMPRESSION_BROKEN", "after its", ()),
    "zst cut off": ("a.jsonl.zst", zst(GOOD)[:-5], "COMPRESSION_BROKEN", "middle", ()),
    "zst damaged": ("a.jsonl.zst", damaged(zst(GOOD), 0.1), "COMPRESSION_BROKEN", "zstand", ()),
    "zst goes on": ("a.jsonl.zst", zst(GOOD) + b"xyzw", "COMPRESSION_BROKEN", "damaged", ()),
    "twice compressed": ("a.jsonl.gz", gzip.compress(zst(GOOD)), "ARCHIVE_REFUSED", "twice", ()),
    "zip in gz": ("a.gz", gzip.compress(zipped({"a.csv": b""})), "ARCHIVE_REFUSED", "twice", ()),
    "zip cut off": ("a.zip", zipped({"a.jsonl": GOOD})[:-30], "ARCHIVE_REFUSED", "damaged", ()),
    "zip damaged": (
        "a.zip",
        damaged(zipped({"a.jsonl": GOOD}, zipfile.ZIP_STORED), 0.2),
        "ARCHIVE_REFUSED",
        "damaged",
        (),
    ),
    "zip without rows": ("a.zip", zipped({"a.md": b"x"}), "ARCHIVE_REFUSED", "no file of rows", ()),
    "empty zip": ("a.zip", zipped({}), "ARCHIVE_REFUSED", "no file of rows", ()),
    "zip in zip": ("a.zip", zipped({"b.zip": b""}), "ARCHIVE_REFUSED", "another archive", ()),
    "path up": ("a.zip", zipped({"../a.jsonl": GOOD}), "ARCHIVE_REFUSED", "leads out", ()),
    "absolute path": ("a.zip", zipped({"/a.jsonl": GOOD}), "ARCHIVE_REFUSED", "leads out", ()),
    "drive": ("a.zip", zipped({"c:/a.jsonl": GOOD}), "ARCHIVE_REFUSED", "leads out", ()),
    "link": ("a.zip", links(), "ARCHIVE_REFUSED", "link", ()),
    "encrypted": ("a.zip", encrypted(), "ARCHIVE_REFUSED", "without a password", ()),
    "same name": ("a.zip", twice(), "ARCHIVE_REFUSED", "one name", ()),
    "bzip2": ("a.zip", zipped({"a.csv": b"a"}, 12), "ARCHIVE_REFUSED", "deflate", ()),
    "parquet column twice": ("a.parquet", columns_of_one_name(), "TABLE_BROKEN", "twice", ()),
    "parquet cut off": ("a.parquet", PARQUET[:-20], "TABLE_BROKEN", "damaged", ()),
    "parquet of zeros": ("a.parquet", PARQUET[:4] + bytes(99), "TABLE_BROKEN", "damaged", ()),
    "arrow cut off": ("a.arrow", arrow_of(ROWS)[:-20], "TABLE_BROKEN", "damaged", ()),
    "arrow stream cut off": (
        "a.arrow",
        arrow_of(ROWS, stream=True)[:-70],
        "TABLE_BROKEN",
        "damaged",
        (),
    ),
    "timestamps": (
        "a.parquet",
        table_of(text=pa.array([0], pa.timestamp("us"))),
        "COLUMN_TYPE",
        "text of type timestamp[us]",
        (),
    ),
    "decimals": (
        "a.parquet",
        table_of(text=pa.array([0], pa.decimal128(9))),
        "COLUMN_TYPE",
        "decimal128",
        (),
    ),
    "bytes": ("a.parquet", table_of(text=pa.array([b"a"])), "COLUMN_TYPE", "binary", ()),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_in_words(tmp_path: Path, name: str) -> None:
    file, content, reason, words, lines = BROKEN[name]

    found = examined(tmp_path, {file: content}).found

    errors = {one.reason: one for one in found.problems if one.is_error}
    assert not found.is_accepted
    assert list(errors) == [reason]
    assert words in errors[reason].description
    assert errors[reason].lines == lines


@pytest.mark.parametrize("name", ["gz cut off", "zip damaged", "parquet cut off", "path up"])
def test_a_broken_file_is_named_and_the_others_are_read(tmp_path: Path, name: str) -> None:
    file, content, reason, _, _ = BROKEN[name]

    one = examined(tmp_path, {"good.jsonl": GOOD, file: content, "more.csv": separated(ROWS)})

    errors = [problem for problem in one.found.problems if problem.is_error]
    assert [problem.reason for problem in errors] == [reason]
    assert errors[0].file.startswith(file)
    assert one.found.row_count >= 8


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([".jsonl", ".json", ".csv", ".tsv", ".txt"]), st.binary(max_size=300))
def test_no_bytes_end_an_examination(tmp_path: Path, suffix: str, content: bytes) -> None:
    found = examined(tmp_path, {f"a{suffix}": content}).found

    assert found.is_accepted is (
        found.row_count > 0 and not any(p.is_error for p in found.problems)
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=3))
def test_no_change_of_a_json_array_goes_unnoticed_or_unread(
    tmp_path: Path, place: int, junk: bytes
) -> None:
    raw = json.dumps(ROWS).encode()
    place %= len(raw)

    found = examined(tmp_path, {"a.json": raw[:place] + junk + raw[place:]}).found

    assert found.row_count == 4 or not found.is_accepted


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.gz", gzip.compress(bytes(3 * 10**6))),
        ("a.jsonl.zst", zst(bytes(3 * 10**6))),
        ("a.zip", zipped({"a.jsonl": bytes(3 * 10**6)})),
        ("a.zip", zipped({"a.jsonl": GOOD, "b.png": bytes(3 * 10**6)})),
        ("a.zip", zipped({f"{at}.jsonl.gz": gzip.compress(bytes(10**6)) for at in range(3)})),
        ("a.parquet.gz", gzip.compress(PARQUET[:4] + bytes(3 * 10**6))),
    ],
)
def test_what_expands_too_much_is_refused_with_the_figure(
    tmp_path: Path, name: str, content: bytes
) -> None:
    limits = Limits(ratio=50, floor_bytes=2 * 10**6)

    problems = examined(tmp_path, {name: content}, limits=limits).found.problems

    told = {one.description for one in problems if one.reason != "ROW_INVALID"}
    assert told == {"expands to more than 2000000 bytes; give it without compression"}


def test_a_small_table_of_huge_rows_is_refused_with_the_figure(tmp_path: Path) -> None:
    huge = table_of(text=pa.array(["x" * 2**20] * 30).dictionary_encode())

    found = examined(tmp_path, {"a.parquet": huge}, limits=Limits(expanded_bytes=20 * 2**20)).found

    assert len(huge) < 2**21
    assert "EXPANDS_TOO_MUCH" in {one.reason for one in found.problems}


def test_an_archive_of_too_many_files_is_refused(tmp_path: Path) -> None:
    many = zipped({f"{at}.jsonl": b"" for at in range(30)})

    assert (
        "holds 30 files"
        in examined(tmp_path, {"a.zip": many}, limits=Limits(members=29)).only.description
    )


def test_an_archive_that_announces_less_than_it_holds_is_not_believed(tmp_path: Path) -> None:
    raw = bytearray(zipped({"a.jsonl": GOOD * 100}))
    size = struct.pack("<I", len(GOOD) * 100)
    lie = bytes(raw).replace(size, struct.pack("<I", 10))

    found = examined(tmp_path, {"a.zip": lie}).found

    assert not found.is_accepted


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_a_row_of_many_megabytes_is_read_and_a_longer_one_left_out(
    tmp_path: Path, name: str
) -> None:
    long = [{"text": "x" * size} for size in (10, ROW_BYTES_MAX - 100, ROW_BYTES_MAX + 100, 20)]
    written = {
        "a.jsonl": jsonl(long),
        "a.json": json.dumps(long).encode(),
        "a.csv": separated(long),
    }

    one = examined(tmp_path, {name: written[name]})

    assert [len(row.row.text) for row in one.rows][:2] == [10, ROW_BYTES_MAX - 100]
    assert "longer than" in one.only.description or "larger than" in one.only.description
    assert one.only.lines == (3,)


def test_rows_after_an_endless_one_keep_their_numbers(tmp_path: Path) -> None:
    endless = {"text": "x" * (2 * ROW_BYTES_MAX)}

    one = examined(tmp_path, {"a.jsonl": jsonl([chat("q", "a"), endless, chat("r", "b")])})

    assert [row.line for row in one.rows] == [1, 3]
    assert one.problems["ROW_INVALID"] == (1, (2,))
