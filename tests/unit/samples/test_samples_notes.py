"""Oddities of rows that are told and do not refuse them."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.samples.layouts import recognise
from lehr.samples.notes import notes
from tests.unit.samples.row_strategies import turn

Q, A = turn("user", "q"), turn("assistant", "a")
CALLS = turn("assistant", None, tool_calls=[{"id": "1", "function": {"name": "f"}}])


@pytest.mark.parametrize(
    ("value", "reasons"),
    [
        ({"messages": [Q, A]}, []),
        ({"messages": [Q, CALLS, turn("tool", "x", tool_call_id="1"), A]}, []),
        ({"messages": [Q, CALLS, turn("tool", "x"), turn("tool", "y"), A]}, []),
        ({"messages": [Q, turn("assistant", "a\tb\r\n")]}, []),
        ({"messages": [Q, turn("assistant", "a\0")]}, ["CONTROL_CHARACTERS"]),
        ({"text": "a\x7f"}, ["CONTROL_CHARACTERS"]),
        ({"prompt": "q", "seen": [{"k": "\x1b"}]}, ["CONTROL_CHARACTERS"]),
        ({"messages": [Q]}, ["NO_ANSWER"]),
        ({"messages": [A, Q]}, ["ENDS_WITHOUT_ANSWER", "BEGINS_WITH_ANSWER"]),
        ({"messages": [turn("system", "s"), A]}, ["BEGINS_WITH_ANSWER"]),
        ({"messages": [Q, A, A]}, ["ANSWERS_IN_A_ROW"]),
        ({"messages": [Q, turn("assistant", "")]}, ["EMPTY_ANSWER"]),
        ({"messages": [Q, A, turn("tool", "x"), A]}, ["TOOL_WITHOUT_CALL"]),
        (
            {"messages": [Q, CALLS, turn("tool", "x", tool_call_id="2"), A]},
            ["TOOL_WITHOUT_CALL"],
        ),
        ({"prompt": [Q], "completion": [A]}, []),
        ({"prompt": [Q, A], "completion": [A]}, ["ANSWERS_IN_A_ROW"]),
        ({"prompt": "q", "chosen": "a", "rejected": "a"}, ["SAME_ANSWERS"]),
        ({"prompt": [Q], "chosen": [A], "rejected": [turn("assistant", "b")]}, []),
        ({"prompt": [Q], "answer": 4}, []),
        ({"prompt": [Q, A], "answer": 4}, ["ENDS_WITH_ANSWER"]),
        ({"prompt": "q", "completions": ["x"], "labels": [True]}, []),
    ],
)
def test_a_row_has_the_notes_that_it_deserves(value: dict[str, Any], reasons: list[str]) -> None:
    row, _ = recognise(value)

    assert [note.reason for note in notes(row)] == reasons
