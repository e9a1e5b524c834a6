"""Reading rows: what is kept to the letter, and what is refused with its place."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.samples.lines import read_row, read_rows
from lehr.samples.rows import PromptAnswerRow, TextRow


def test_a_key_that_comes_twice_is_found_among_a_hundred_thousand() -> None:
    # Looking for each key in all of them takes a minute.
    keys = ",".join(f'"key {at}": 0' for at in range(100_000))
    began = time.process_time()

    with pytest.raises(InvalidArgument, match="holds the key 'key 99999' twice"):
        read_row(f'{{{keys}, "key 99999": 1}}', number=1)

    assert time.process_time() - began < 30


def line_of(value: Any) -> str:
    return json.dumps(value)


def a_call(arguments: Any) -> str:
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    turns = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "content": "4 C"},
    ]
    return line_of({"messages": turns})


def arguments_of(line: str) -> Any:
    return read_row(line, number=1).messages[1]["tool_calls"][0]["function"]["arguments"]


def test_nested_arguments_keep_their_own_keys_order_and_nulls() -> None:
    arguments = arguments_of(a_call({"time": 1754006400, "note": None, "a": "1"}))

    assert json.dumps(arguments) == '{"time": 1754006400, "note": null, "a": "1"}'


def test_arguments_as_text_and_as_object_mean_the_same() -> None:
    assert arguments_of(a_call('{"city": "Oslo"}')) == arguments_of(a_call({"city": "Oslo"}))
    assert arguments_of(a_call("")) == {}


def test_argument_text_that_is_not_json_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidArgument, match=r"line 1, messages\[1\].tool_calls\[0\]"):
        read_row(a_call("{city: Oslo"), number=1)


def test_a_row_without_tools_differs_from_one_with_an_empty_list() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

    assert read_row(line_of({"messages": chat}), number=1).tools is None
    assert read_row(line_of({"messages": chat, "tools": []}), number=1).tools == ()


def test_unused_columns_do_not_matter() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    plain = read_row(line_of({"messages": chat}), number=1)

    assert read_row(line_of({"messages": chat, "meta": {"k": [1]}}), number=9) == plain


def test_rows_are_equal_by_key_exactly_when_they_are_equal() -> None:
    first = read_row(line_of({"prompt": "a", "completion": "b"}), number=1)
    again = read_row('{"completion":"b", "prompt":"a"}', number=2)
    other = read_row(line_of({"prompt": "a", "completion": "c"}), number=3)

    assert first.key() == again.key() != other.key()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "line 7: is a list"),
        ('{"messages": [', "line 7: is not JSON"),
        ('{"messages": NaN}', "line 7: holds NaN"),
        ('{"txt": "a"}', "line 7: fits no layout; its columns are 'txt'; name them"),
        ('{"txt": {"a": 1, "a": 2}}', "line 7: holds the key 'a' twice in one object"),
        ('{"messages": [{"role": "user", "role": "user"}]}', "the key 'role' twice"),
        ('{"text": ""}', "line 7, text: is empty; there is nothing to learn from"),
        ('{"text": " \\n"}', "line 7, text: is empty"),
        ('{"text": 5}', "line 7, text: is a number; write text"),
        ('{"text": ["a"]}', "line 7, text: is a list; write text"),
        ('{"text": true}', "line 7, text: is true or false; write text"),
        ('{"messages": Infinity}', "line 7: holds Infinity"),
        ('{"messages": -Infinity}', "line 7: holds -Infinity"),
        ('{"score": 1e999, "text": "a"}', "line 7: holds '1e999', a number too large"),
        (f'{{"text": {"9" * 5000}}}', "line 7: cannot be read: Exceeds the limit"),
        ("null", "line 7: is null; write one JSON object"),
        ('{"messages": "hi"}', "line 7, messages: is text"),
        ('{"messages": []}', "line 7, messages: is empty"),
        ('{"messages": [{"role": "bing", "content": "a"}]}', "role: is 'bing'; use one of"),
        ('{"messages": [{"role": "user"}]}', r"messages\[0\].content: is missing"),
        ('{"messages": [{"role": "user", "content": 5}]}', "content: is a number"),
        ('{"prompt": "a", "completion": ""}', "completion: is empty"),
        ('{"prompt": "a", "completion": [{"role": "user", "content": "a"}]}', "whichever prompt"),
        ('{"prompt": "a\\ud83d", "completion": "b"}', r"half a surrogate pair \(U\+D83D\)"),
        ("[" * 100_000, "line 7: is nested too deeply"),
        (f'{{"prompt": "a", "answer": {"[" * 70}{"]" * 70}}}', "deeply; use at most 64 levels"),
        ('{"messages": [{"role": 5, "content": "a"}]}', r"messages\[0\].role: is 5; use one of"),
        ('{"messages": [{"role": ["user"], "content": "a"}]}', r"role: is \['user'\]; use one of"),
        ('{"messages": [{"content": "a"}]}', r"messages\[0\].role: is None; use one of"),
        ('{"messages": ["a"]}', r"messages\[0\]: is text; write an object with role"),
    ],
)
def test_a_wrong_row_is_refused_with_line_field_and_cure(line: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as refused:
        read_row(line, number=7)

    assert refused.value.facts["line"] == "7"


def test_control_characters_and_whole_surrogate_pairs_are_text() -> None:
    row = read_row(r'{"prompt": "a\u0000", "completion": "x\ud83d\ude00y"}', number=1)

    assert (row.prompt, row.completion) == ("a\0", "x\N{GRINNING FACE}y")


def test_a_file_may_have_a_mark_blank_lines_and_dos_ends(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row = b'{"prompt": "a", "completion": "b"}'
    file.write_bytes(b"\xef\xbb\xbf" + row + b"\r\n\r\n" + row)

    assert len(list(read_rows(file))) == 2


def test_bytes_that_are_not_utf_8_are_refused_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"prompt": "a", "completion": "b"}\n{"prompt": "\xff"}\n')

    with pytest.raises(InvalidArgument, match="line 2: is not UTF-8 at byte 12"):
        list(read_rows(file))


def test_whole_numbers_of_any_size_are_kept_exactly() -> None:
    row = read_row('{"prompt": "a", "answer": 123456789012345678901234567890}', number=1)

    assert isinstance(row, PromptAnswerRow)
    assert row.answer == 123456789012345678901234567890


def test_a_huge_row_is_read_whole() -> None:
    row = read_row(json.dumps({"text": "x" * 20_000_000}), number=1)

    assert isinstance(row, TextRow)
    assert len(row.text) == 20_000_000
