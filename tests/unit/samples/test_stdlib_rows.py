"""The demonstration's data: thousands of rows that our own reader accepts, the same each time."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from lehr.demo.stdlib_rows import stdlib_rows, write_stdlib_rows
from lehr.samples.lines import read_rows
from lehr.samples.rows import ChatRow


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stdlib_rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def rows(file: Path) -> list[ChatRow]:
    return list(read_rows(file))


def test_there_are_thousands_of_different_rows(rows: list[ChatRow]) -> None:
    assert len(rows) > 2000
    assert len({row.key() for row in rows}) == len(rows)


def test_every_row_is_one_question_and_one_short_answer(rows: list[ChatRow]) -> None:
    assert {tuple(turn["role"] for turn in row.messages) for row in rows} == {("user", "assistant")}
    assert max(len(row.messages[1]["content"]) for row in rows) <= 400
    assert min(len(row.messages[1]["content"]) for row in rows) >= 30


def test_questions_are_put_in_many_ways(rows: list[ChatRow]) -> None:
    openings = {row.messages[0]["content"].split(" ")[0] for row in rows}

    assert {"What", "Explain", "How", "When", "Describe", "In"} <= openings


def test_a_second_reading_of_the_sources_gives_the_same_rows(file: Path) -> None:
    again = [json.dumps(row, ensure_ascii=False) for row in itertools.islice(stdlib_rows(), 200)]

    assert file.read_text(encoding="utf-8").splitlines()[:200] == again


def test_a_file_that_is_there_is_not_written_again(file: Path) -> None:
    before = file.stat().st_mtime_ns

    again = write_stdlib_rows(file.parent.parent)

    assert (again, again.stat().st_mtime_ns) == (file, before)
