"""Keys of rows: what counts as a copy, and what as the same prompt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.samples.rows import (
    KEY_BYTES,
    ChatRow,
    PreferenceRow,
    PromptAnswerRow,
    PromptCompletionRow,
    Row,
    StepwiseRow,
    TextRow,
)
from tests.unit.samples.row_strategies import ROWS, turn

#: Few words, so that rows are often equal.
_WORDS = st.sampled_from(["a", "b"])
_SIDES = _WORDS | st.tuples(st.builds(turn, st.sampled_from(["user", "assistant"]), _WORDS))
_LIKELY_EQUAL: st.SearchStrategy[Row] = st.one_of(
    st.builds(TextRow, text=_WORDS),
    st.builds(PromptCompletionRow, prompt=_SIDES, completion=_SIDES),
    st.builds(PreferenceRow, prompt=_SIDES, chosen=_WORDS, rejected=_WORDS),
    st.builds(PromptAnswerRow, prompt=_SIDES, answer=_WORDS, columns=st.just({})),
    st.builds(StepwiseRow, prompt=_WORDS, completions=st.tuples(_WORDS), labels=st.just((True,))),
)


@given(_LIKELY_EQUAL, _LIKELY_EQUAL)
def test_rows_have_one_key_exactly_when_they_are_equal(first: Row, second: Row) -> None:
    assert (first.key() == second.key()) == (first == second)
    assert len(first.key()) == len(first.prompt_key()) == KEY_BYTES


@given(ROWS)
def test_a_row_written_with_other_order_of_keys_is_a_copy(row: Row) -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return type(value)(map(turned, value)) if isinstance(value, list | tuple) else value

    again = type(row)(**{name: turned(value) for name, value in row.fields.items()})

    assert again.key() == row.key()


@pytest.mark.parametrize("values", [(1, 1.0), (1, True), (0, False), (None, "null"), (1, "1")])
def test_values_of_different_types_make_different_rows(values: tuple[Any, Any]) -> None:
    first, second = (PromptAnswerRow(prompt="p", answer=it, columns={}) for it in values)

    assert first.key() != second.key()


def test_kinds_with_the_same_text_are_different_rows() -> None:
    assert TextRow(text="a").key() != PromptAnswerRow(prompt="a", answer=None, columns={}).key()


def test_the_prompt_of_a_chat_is_all_before_its_last_answer() -> None:
    chat = (turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d"))
    other_answer = (*chat[:3], turn("assistant", "e"))
    other_question = (*chat[:2], turn("user", "x"), chat[3])

    keys = [ChatRow(messages=it).prompt_key() for it in (chat, other_answer, other_question)]

    assert keys[0] == keys[1] != keys[2]


def test_the_same_prompt_has_one_key_in_every_kind_of_row() -> None:
    prompt, answer = (turn("user", "a"),), (turn("assistant", "b"),)
    rows: list[Row] = [
        ChatRow(messages=prompt + answer),
        PromptCompletionRow(prompt=prompt, completion=answer),
        PreferenceRow(prompt=prompt, chosen=answer, rejected=(turn("assistant", "c"),)),
        PromptAnswerRow(prompt=prompt, answer=1, columns={"k": 2}),
    ]

    assert len({row.prompt_key() for row in rows}) == 1


def test_tools_and_images_are_shown_and_so_part_of_the_prompt() -> None:
    chat = (turn("user", "a"), turn("assistant", "b"))
    rows = [
        ChatRow(messages=chat),
        ChatRow(messages=chat, tools=()),
        ChatRow(messages=chat, tools=({"name": "f"},)),
        ChatRow(messages=chat, images=("x.png",)),
    ]

    assert len({row.prompt_key() for row in rows}) == 4
    assert [row.has_images for row in rows] == [False, False, False, True]


def test_keys_are_the_same_in_every_process_and_version() -> None:
    row = ChatRow(messages=(turn("user", "é"), turn("assistant", "b")))

    # Keys are at rest beside the rows; other ones would make every split a different one.
    assert row.key().hex() == "66bd9812c5defe8c20566eaf3e7e9f93"
    assert row.prompt_key().hex() == "1bb54bc8e1a1d9c199572054c543a479"
