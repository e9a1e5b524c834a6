"""What an examination says of rows: all are read, copies and kinds are counted, lines are right."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lehr.errors import InvalidArgument
from lehr.samples.canonical import read_canonical
from services.catalog.examination import copies
from services.catalog.examination.copies import KEYS, KeyFile
from tests.support.datasets import (
    chat,
    examined,
    jsonl,
    parquet_of,
    separated,
    zipped,
)

LATE: list[dict[str, Any]] = [
    chat("q60000", "a60000 " + 200 * "x", meta="late"),
    chat("q60001", "a60001 " + 200 * "x", meta={"k": 1}),
    chat("q60002", "a60002 " + 200 * "x"),
    chat("q60003", "a60003 " + 200 * "x", meta=None, tags=["a"]),
]
DUPS = jsonl([chat(f"q{at}", f"a{at}") for at in (0, 1, 0, 2, 3, 0, 4, 5, 0, 6)])
NUL = b"""\
{"messages":[{"role":"user","content":"ok"},{"role":"assistant","content":"fine"}]}
{"messages":[{"role":"user","content":"nul"},{"role":"assistant","content":"a\\u0000b"}]}
{"messages":[{"role":"user","content":"lone"},{"role":"assistant","content":"x\\ud83dy"}]}
{"messages":[{"role":"user","content":"pair"},{"role":"assistant","content":"x\\ud83d\\ude00y"}]}
"""


def test_the_whole_file_decides_in_either_order(tmp_path: Path) -> None:
    rows = [chat(f"q{at}", f"a{at} " + 200 * "x", meta=None) for at in range(60_000)] + LATE

    one = examined(tmp_path, {"a.jsonl": jsonl(rows)}, processes=2)
    other = examined(tmp_path, {"a.jsonl": jsonl(rows[::-1])}, processes=2)

    assert (one.found.row_count, one.found.distinct_count) == (60_004, 60_004)
    assert (other.found.row_count, other.found.distinct_count) == (60_004, 60_004)
    assert one.found.problems == other.found.problems == ()
    assert {row.row.key() for row in one.rows} == {row.row.key() for row in other.rows}
    assert [row.row for row in one.rows] == [row.row for row in other.rows][::-1]


@pytest.mark.parametrize(
    ("value", "words"),
    [(5, "is a number"), ("hi", "is text"), ({"role": "user"}, "is an object"), (True, "is true")],
)
def test_a_bad_type_late_in_a_file_is_named_with_its_line(
    tmp_path: Path, value: Any, words: str
) -> None:
    rows = [chat(f"q{at}", 400 * "x") for at in range(6000)] + [{"messages": value}]

    one = examined(tmp_path, {"a.jsonl": jsonl(rows)}, processes=2)

    assert (one.only.reason, one.only.lines, one.only.row_count) == ("ROW_INVALID", (6001,), 1)
    assert words in one.only.description
    assert "list of messages" in one.only.description


def test_copies_are_counted_and_named(tmp_path: Path) -> None:
    one = examined(tmp_path, {"dups.jsonl": DUPS})

    assert (one.found.row_count, one.found.distinct_count) == (10, 7)
    assert one.problems == {"DUPLICATE_ROW": (3, (3, 6, 9))}
    assert one.only.description.startswith("3 extra copies of 1 row;")
    assert one.found.is_accepted
    assert len(one.rows) == 10


def test_copies_in_another_file_are_copies_and_named_there(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{at % 3}", "completion": "a"} for at in range(4)]

    one = examined(tmp_path, {"a.jsonl": jsonl(rows[:3]), "b.parquet": parquet_of(rows[2:])})

    told = [(found.file, found.row_count, found.lines) for found in one.found.problems]
    assert told == [("b.parquet", 2, (1, 2))]
    assert one.only.description.startswith("2 extra copies of 2 rows;")


def test_rows_that_differ_in_columns_that_are_not_used_are_copies(tmp_path: Path) -> None:
    one = examined(tmp_path, {"a.jsonl": jsonl([chat("q", "a"), chat("q", "a", meta=1)])})

    assert one.problems == {"DUPLICATE_ROW": (1, (2,))}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 7), max_size=60), st.integers(1, 20))
@example([0, 1] * 60, 7)
def test_copies_are_found_however_few_rows_are_sorted_at_once(
    tmp_path: Path, values: list[int], bucket_rows: int
) -> None:
    kept = copies.BUCKET_ROWS
    copies.BUCKET_ROWS = bucket_rows
    try:
        with KeyFile(tmp_path / "keys.npy") as keys:
            for at, value in enumerate(values):
                row = np.array([value // 2 * 7919, value % 2, 1, 1], "<u8").tobytes()
                keys.append(row, np.array([at + 1], np.int64), file=at % 2)
            keys.finish()
            found, copied, distinct = keys.copies()
    finally:
        copies.BUCKET_ROWS = kept

    first = {value: values.index(value) for value in values}
    extra = [at for at, value in enumerate(values) if first[value] != at]
    assert distinct == len(first)
    assert copied == len({values[at] for at in extra})
    for file in (0, 1):
        lines = tuple(at + 1 for at in extra if at % 2 == file)
        told = [(one.row_count, one.lines) for one in found if one.file == file]
        assert told == [(len(lines), lines[:20])][: bool(lines)]


def test_the_key_file_holds_the_keys_of_rows_and_prompts(tmp_path: Path) -> None:
    one = examined(tmp_path, {"dups.jsonl": DUPS})

    keys = np.load(one.folder / "keys.npy")

    assert keys.dtype == KEYS
    assert [key.tobytes() for key in keys["row"]] == [row.row.key() for row in one.rows]
    assert [key.tobytes() for key in keys["prompt"]] == [row.row.prompt_key() for row in one.rows]


def test_nul_is_told_and_half_a_pair_is_named(tmp_path: Path) -> None:
    one = examined(tmp_path, {"nul.jsonl": NUL})

    assert one.problems == {"ROW_INVALID": (1, (3,)), "CONTROL_CHARACTERS": (1, (2,))}
    assert "surrogate" in one.found.problems[0].description
    assert [row.row.messages[1]["content"] for row in one.rows] == ["fine", "a\0b", "x\U0001f600y"]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet"])
def test_nul_in_a_table_is_told_too(tmp_path: Path, name: str) -> None:
    rows = [{"text": "fine"}, {"text": "a\0b"}]
    written = {"a.csv": separated(rows), "a.tsv": separated(rows), "a.parquet": parquet_of(rows)}

    one = examined(tmp_path, {name: written[name]})

    assert one.problems == {"CONTROL_CHARACTERS": (1, (2,))}
    assert one.rows[1].row.text == "a\0b"


def test_nested_objects_keep_their_own_keys_and_types(tmp_path: Path) -> None:
    calls: list[dict[str, Any]] = [
        {"city": "Oslo"},
        {"time": "2025-08-01"},
        {"time": 1754006400, "note": None},
    ]
    rows = []
    for arguments in calls:
        row = chat("q", "a")
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        row["messages"][1] |= {"content": None, "tool_calls": [call]}
        rows.append(row)

    one = examined(tmp_path, {"a.jsonl": jsonl(rows)})

    told = [row.row.messages[1]["tool_calls"][0]["function"]["arguments"] for row in one.rows]
    assert [json.dumps(arguments) for arguments in told] == [json.dumps(it) for it in calls]


def test_nulls_that_a_columnar_file_fills_in_are_left_out_and_told(tmp_path: Path) -> None:
    rows = [chat("q", "a") for _ in range(3)]
    rows[1]["messages"][1] |= {"name": "N"}

    one = examined(tmp_path, {"a.parquet": parquet_of(rows)})

    assert [row.row.messages[1] for row in one.rows] == [row["messages"][1] for row in rows]
    # Every row has a turn without a name.
    assert one.problems["STRUCT_NULLS"] == (3, (1, 2, 3))
    assert one.found.is_accepted


def test_odd_types_of_columns_that_are_not_used_are_left_out(tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": pa.array(["a", "b"]).dictionary_encode().cast(pa.large_string()),
            "when": pa.array([1, 2], pa.timestamp("s")),
            "raw": [b"a", b"b"],
        }
    )
    out = pa.BufferOutputStream()
    pa.parquet.write_table(table, out)

    one = examined(tmp_path, {"a.parquet": out.getvalue().to_pybytes()})

    assert [row.row.text for row in one.rows] == ["a", "b"]
    assert {found.reason for found in one.found.problems} == {"COLUMN_LEFT_OUT"}
    assert one.found.is_accepted


def test_a_column_of_the_map_must_have_a_type_that_is_read(tmp_path: Path) -> None:
    rows = [{"when": "x", "what": "y"}]
    good = examined(tmp_path, {"a.parquet": parquet_of(rows)}, columns={"text": "when"})
    table = pa.table({"when": pa.array([1], pa.timestamp("s")), "what": ["y"]})
    out = pa.BufferOutputStream()
    pa.parquet.write_table(table, out)

    bad = examined(tmp_path, {"a.parquet": out.getvalue().to_pybytes()}, columns={"text": "when"})

    assert good.rows[0].row.text == "x"
    assert bad.only.reason == "COLUMN_TYPE"
    assert "when of type timestamp" in bad.only.description


def test_rows_of_several_kinds_are_refused_and_the_fewer_named(tmp_path: Path) -> None:
    text = [{"text": f"t{at}"} for at in range(3)]

    one = examined(tmp_path, {"a.jsonl": jsonl([chat("q", "a"), *text])})
    two = examined(tmp_path, {"a.jsonl": jsonl(text), "b.jsonl": jsonl([chat("q", "a")])})

    assert (one.found.row_kind, one.problems) == ("text", {"MIXED_KINDS": (1, (1,))})
    assert "is a messages row among text rows" in one.only.description
    assert not one.found.is_accepted
    assert (two.only.file, two.only.lines, two.only.is_error) == ("b.jsonl", (1,), True)


def test_layouts_are_counted(tmp_path: Path) -> None:
    share = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "b"}]}

    one = examined(tmp_path, {"a.jsonl": jsonl([chat("q", "a"), share, share | {"x": 1}])})

    assert one.found.layouts == {"chat": 1, "sharegpt": 2}
    assert one.found.row_kind == "messages"


def test_problems_name_their_file_where_there_are_several(tmp_path: Path) -> None:
    bad = b'{"text": 1}\n'

    one = examined(tmp_path, {"a.zip": zipped({"x/a.jsonl": bad, "x/b.jsonl": b"\n" + bad})})
    alone = examined(tmp_path, {"a.jsonl": bad})

    told = [(found.file, found.lines) for found in one.found.problems]
    assert told == [("a.zip/x/a.jsonl", (1,)), ("a.zip/x/b.jsonl", (2,))]
    assert alone.only.file == ""


def test_a_file_without_rows_beside_others_is_told_and_no_error(tmp_path: Path) -> None:
    one = examined(tmp_path, {"a.jsonl": jsonl([chat("q", "a")]), "b.jsonl": b"\n"})

    assert one.only.reason == "FILE_WITHOUT_ROWS"
    assert (one.only.file, one.found.is_accepted) == ("b.jsonl", True)


def test_a_column_map_that_is_none_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="columns"):
        examined(tmp_path, {"a.jsonl": jsonl([chat("q", "a")])}, columns={"nope": "x"})


def test_canonical_rows_are_read_by_who_trains(tmp_path: Path) -> None:
    one = examined(tmp_path, {"a.jsonl": jsonl([chat("q", "a")] * 3)})

    assert len(list(read_canonical(one.folder / one.found.rows_file.name))) == 3
    assert one.found.rows_file.size_bytes == (one.folder / "rows.jsonl.zst").stat().st_size
    assert sorted(path.name for path in one.folder.iterdir()) == ["keys.npy", "rows.jsonl.zst"]
