"""The same rows are the same, whatever file they came in."""

import json
from pathlib import Path

import pytest

from tests.support.datasets import Rows, arrow_of, chat, examined, jsonl, packed, parquet_of, zipped

TEXTS = [
    {"prompt": f"q{at}", "completion": f'a{at} é, "quoted"\nand\tmore \\ 😀', "id": str(at)}
    for at in range(10)
]
CHATS = [chat(f"q{at}", f'[{{"a{at}": "]}}"}}, \\" \u2028 é') for at in range(10)]
NAMES = sorted(packed(TEXTS))


@pytest.mark.parametrize("rows", [TEXTS, CHATS], ids=["texts", "chats"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_the_same_in_every_format(tmp_path: Path, rows: Rows, name: str) -> None:
    plain = examined(tmp_path, packed(rows)["jsonl"])

    other = examined(tmp_path, packed(rows)[name])

    assert len(plain.rows) == 10
    assert [one.row for one in other.rows] == [one.row for one in plain.rows]
    assert other.found.is_accepted
    assert set(other.problems) <= {"EXTENSION_WRONG"}
    assert ("named" in name) is bool(other.problems)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"two files", "zip of folders"}))
def test_rows_are_numbered_as_a_person_counts_them(tmp_path: Path, name: str) -> None:
    found = examined(tmp_path, packed(TEXTS)[name])

    assert [one.line for one in found.rows] == list(range(1, 11))


@pytest.mark.parametrize("name", ["two files", "zip of folders"])
def test_each_file_is_numbered_by_itself(tmp_path: Path, name: str) -> None:
    found = examined(tmp_path, packed(TEXTS)[name])

    places = [(one.file, one.line) for one in found.rows]
    assert places == [(file, line) for file in (0, 1) for line in range(1, 6)]
    assert len(found.found.files) == 2


@pytest.mark.parametrize("name", ["jsonl", "parquet in groups", "zip of folders"])
def test_the_same_bytes_make_the_same_files(tmp_path: Path, name: str) -> None:
    one = examined(tmp_path, packed(CHATS)[name], processes=1)
    two = examined(tmp_path, packed(CHATS)[name], processes=2)

    assert one.found == two.found


def test_files_of_an_archive_are_read_by_name(tmp_path: Path) -> None:
    members = {f"{name}.jsonl": jsonl(TEXTS[at : at + 1]) for at, name in enumerate("cab")}

    one = examined(tmp_path, {"a.zip": zipped(members)})

    assert one.found.files == ("a.zip/a.jsonl", "a.zip/b.jsonl", "a.zip/c.jsonl")
    assert [row.row.prompt for row in one.rows] == ["q1", "q2", "q0"]


def test_a_single_row_in_a_json_file_is_one_row(tmp_path: Path) -> None:
    row = {**CHATS[0], "tools": [{"name": "f"}]}

    one = examined(tmp_path, {"a.json": json.dumps(row)})
    two = examined(tmp_path, {"b.json": json.dumps({"rows": [row], "tools": [{}]}, indent=1)})

    assert [found.row.tools for found in one.rows] == [({"name": "f"},)]
    assert [found.row for found in two.rows] == [found.row for found in one.rows]
    assert two.found.is_accepted


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_parts_of_a_columnar_file_are_read_in_order_by_several_processes(
    tmp_path: Path, kind: str
) -> None:
    rows = [{"text": f"{at} " + "x" * 2**20} for at in range(40)]
    written = {
        "parquet": parquet_of(rows, row_group_size=3, use_dictionary=False),
        "arrow": arrow_of(rows, batch_rows=3),
    }

    one = examined(tmp_path, {"a.bin": written[kind]}, processes=2)

    assert [(row.line, row.row.text.partition(" ")[0]) for row in one.rows] == [
        (at + 1, str(at)) for at in range(40)
    ]
