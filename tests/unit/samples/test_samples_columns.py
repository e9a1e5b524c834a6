"""The user's column map overrides what would be recognised, and is named where it is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.samples.columns import check_columns
from lehr.samples.layouts import recognise
from lehr.samples.rows import (
    ChatRow,
    PreferenceRow,
    PromptAnswerRow,
    PromptCompletionRow,
    Row,
    StepwiseRow,
    TextRow,
    UnpairedRow,
)
from tests.unit.samples.row_strategies import turn

Q, A, B = turn("user", "q"), turn("assistant", "a"), turn("assistant", "b")
TOOL = {"name": "f"}
EVERYTHING = {
    "messages": [Q, B],
    "dialog": {"turns": [Q, A]},
    "problem": "q",
    "answer": "a",
    "other": "b",
    "good": 1,
    "functions": [TOOL],
    "a.b": "exact",
    "packed": json.dumps({"truth": {"value": 4}}),
    "rater": "s",
    "steps": ["x"],
    "verdicts": [False],
}


@pytest.mark.parametrize(
    ("columns", "row", "layout"),
    [
        ({"messages": "dialog.turns"}, ChatRow(messages=(Q, A)), "chat"),
        (
            {"messages": "dialog.turns", "tools": "functions", "system": "rater"},
            ChatRow(messages=(turn("system", "s"), Q, A), tools=(TOOL,)),
            "chat",
        ),
        (
            {"prompt": "problem", "completion": "answer"},
            PromptCompletionRow(prompt="q", completion="a"),
            "prompt_completion",
        ),
        ({"text": "a.b"}, TextRow(text="exact"), "text"),
        (
            {"prompt": "problem", "chosen": "answer", "rejected": "other"},
            PreferenceRow(prompt="q", chosen="a", rejected="b"),
            "preference",
        ),
        (
            {"prompt": "problem", "completion": "other", "label": "good"},
            UnpairedRow(prompt="q", completion="b", label=True),
            "unpaired_preference",
        ),
        (
            {"messages": "messages", "label": "good"},
            UnpairedRow(prompt=(Q,), completion=(B,), label=True),
            "unpaired_preference",
        ),
        (
            {"prompt": "problem", "completions": "steps", "labels": "verdicts"},
            StepwiseRow(prompt="q", completions=("x",), labels=(False,)),
            "stepwise",
        ),
    ],
)
def test_a_map_makes_the_row_that_it_says(columns: dict[str, str], row: Row, layout: str) -> None:
    assert recognise(EVERYTHING, columns=columns) == (row, layout)


def test_a_row_for_rewards_keeps_all_columns_that_are_not_mapped() -> None:
    row, _ = recognise(EVERYTHING, columns={"prompt": "problem", "answer": "packed.truth.value"})

    left = {name: it for name, it in EVERYTHING.items() if name not in ("problem", "packed")}
    assert row == PromptAnswerRow(prompt="q", answer=4, columns=left)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": "body"}, r"body \(mapped to text\): is missing; the columns are 'messages', "),
        ({"text": "dialog.body"}, r"dialog.body \(mapped to text\): is missing"),
        ({"text": "none"}, r"none \(mapped to text\): is null"),
        ({"text": "good"}, r"good \(mapped to text\): is a number; write text"),
        ({"messages": "wrong"}, r"wrong\[1\].role \(mapped to messages\): is 'bing'; use one of"),
        ({"messages": "problem"}, r"problem \(mapped to messages\): is text; write a list"),
        ({"messages": "messages", "tools": "toolz"}, r"toolz \(mapped to tools\): is missing"),
        ({"messages": "messages", "tools": "good"}, r"good \(mapped to tools\): is a number"),
        (
            {"prompt": "problem", "completion": "answer", "label": "answer"},
            r"answer \(mapped to label\): is 'a'; write true or false",
        ),
    ],
)
def test_a_mapped_column_that_is_wrong_is_named_with_its_field(
    columns: dict[str, str], message: str
) -> None:
    value = EVERYTHING | {"none": None, "wrong": [Q, turn("bing", "x")]}

    with pytest.raises(InvalidArgument, match=message) as refused:
        recognise(value, columns=columns)

    assert refused.value.reason == "ROW_INVALID"


def test_an_optional_column_that_is_null_is_not_there() -> None:
    value: dict[str, Any] = {"chat": [Q, A], "functions": None, "right": None}

    chat, _ = recognise(value, columns={"messages": "chat", "tools": "functions"})
    asked, _ = recognise(value | {"p": "q"}, columns={"prompt": "p", "answer": "right"})

    assert chat == ChatRow(messages=(Q, A))
    assert isinstance(asked, PromptAnswerRow)
    assert asked.answer is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"question": "q"}, "columns.question: is no field; map answer, chosen, completion"),
        ({"text": ""}, "columns.text: has no column"),
        ({"prompt": "p", "text": "t"}, "columns: prompt and text make no row; map one of: "),
        ({"tools": "t"}, "columns: tools make no row"),
        ({"completion": "c"}, "columns: completion make no row"),
    ],
)
def test_a_map_that_makes_no_row_is_refused_before_any_is_read(
    columns: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message) as refused:
        check_columns(columns)

    assert refused.value.reason == "COLUMNS_INVALID"
