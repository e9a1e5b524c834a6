"""Rows at rest: what is read is what was written, to the letter."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lehr.samples.canonical import Located, from_line, read_canonical, to_line
from lehr.samples.rows import ROW_TYPES, ChatRow, PromptAnswerRow, PromptCompletionRow, Row, TextRow
from tests.unit.samples.row_strategies import ROWS


def exactly(row: Row) -> str:
    """Return all of a row with the order of keys and the types of numbers."""
    return json.dumps([type(row).__name__, row.fields])


@given(ROWS, st.integers(1, 2**40), st.integers(0, 500))
def test_a_row_of_any_kind_comes_back_the_same_from_its_line(
    row: Row, line: int, file: int
) -> None:
    raw = to_line(row, line=line, file=file)

    found = from_line(raw)

    assert raw.count(b"\n") == 1
    assert found == Located(line=line, file=file, row=row)
    assert exactly(found.row) == exactly(row)
    assert found.row.key() == row.key()


def test_every_kind_of_row_has_its_type() -> None:
    assert set(ROW_TYPES) == {
        "messages",
        "prompt_completion",
        "text",
        "preference",
        "unpaired_preference",
        "prompt_answer",
        "stepwise",
    }


def test_a_line_is_compact_utf_8_in_the_order_of_its_author() -> None:
    turn = {"content": "é", "role": "user", "name": None}

    raw = to_line(ChatRow(messages=(turn,)), line=3, file=1)

    assert raw.decode() == (
        '{"kind":"messages","line":3,"file":1,'
        '"messages":[{"content":"é","role":"user","name":null}]}\n'
    )


@pytest.mark.parametrize("tools", [None, ()])
def test_no_tools_and_an_empty_list_of_tools_stay_apart(tools: Any) -> None:
    row = PromptCompletionRow(prompt="", completion="b", tools=tools)

    assert from_line(to_line(row, line=1, file=0)).row == row


def test_lists_of_the_authors_own_stay_lists() -> None:
    row = PromptAnswerRow(prompt="p", answer=[1, [2]], columns={"tests": ["a"]})

    found = from_line(to_line(row, line=1, file=0)).row

    assert isinstance(found, PromptAnswerRow)
    assert (found.answer, found.columns) == ([1, [2]], {"tests": ["a"]})


def test_half_a_surrogate_pair_can_be_kept_although_no_reader_gives_one() -> None:
    row = TextRow(text="x\ud83dy é")

    raw = to_line(row, line=1, file=0)

    assert raw.isascii()
    assert from_line(raw).row == row


def test_what_is_no_json_is_never_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_line(PromptAnswerRow(prompt="p", columns={"score": float("nan")}), line=1, file=0)


def test_a_file_of_several_frames_is_read_through(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.zst"
    # Rows that do not pack well are longer than what is read at once.
    rows = [TextRow(text=f"row {at}\u2028 {os.urandom(3000).hex() * (at % 3)}") for at in range(50)]
    lines = [to_line(row, line=at, file=0) for at, row in enumerate(rows)]
    frames = [b"".join(lines[:10]), b"", b"".join(lines[10:])]
    path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(frame) for frame in frames))

    found = list(read_canonical(path))

    assert [(one.line, one.row) for one in found] == list(enumerate(rows))


@pytest.mark.parametrize("lost", [1, 100, 50_000])
def test_a_file_that_is_cut_off_is_never_taken_for_a_whole_one(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "rows.jsonl.zst"
    lines = [to_line(TextRow(text=os.urandom(30_000).hex()), line=1, file=0)] * 2
    frames = b"".join(zstandard.ZstdCompressor().compress(line) for line in lines)
    path.write_bytes(frames[:-lost])

    with pytest.raises(EOFError, match="in the middle of a"):
        list(read_canonical(path))


def test_a_frame_that_ends_in_the_middle_of_a_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.zst"
    line = to_line(TextRow(text="a"), line=1, file=0)
    path.write_bytes(zstandard.ZstdCompressor().compress(line + line[:-1]))

    with pytest.raises(EOFError, match="in the middle of a row"):
        list(read_canonical(path))
