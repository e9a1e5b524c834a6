"""Where reasoning begins and ends in what an assistant wrote."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.samples.reasoning import Spoken, spoken, with_whole_block


def said(**turn: Any) -> tuple[str, tuple[str, ...]]:
    found = spoken({"role": "assistant", **turn})
    return found.reasoning, found.texts


@pytest.mark.parametrize(
    ("content", "whole"),
    [
        ("plain", "plain"),
        ("", ""),
        (" \n thought</think>text", "<think>\nthought</think>text"),
        ("</think>text", "<think>\n</think>text"),
        ("<think>thought</think>text", "<think>thought</think>text"),
        ("  <think>thought</think>text", "  <think>thought</think>text"),
        # The first mark decides: what it closes was never opened.
        ("a</think>b<think>c</think>d", "<think>\na</think>b<think>c</think>d"),
        ("<think>never closed", "<think>never closed"),
    ],
)
def test_reasoning_that_was_never_opened_is_opened(content: str, whole: str) -> None:
    assert with_whole_block(content) == whole


@pytest.mark.parametrize(
    ("content", "reasoning", "text"),
    [
        ("<think>\n a b \n</think>\n\ntext", "a b", "\n\ntext"),
        ("only closed</think>text", "only closed", "text"),
        ("<think>a</think>b</think>c", "a</think>b", "c"),
        ("<think>a</think>b<think>c</think>d", "c", "d"),
        ("<think></think>text", "", "text"),
        ("text", "", "text"),
        ("<think>never closed", "", "<think>never closed"),
    ],
)
def test_the_last_mark_ends_the_reasoning(content: str, reasoning: str, text: str) -> None:
    assert said(content=content) == (reasoning, (text,))


def test_a_field_of_reasoning_outranks_what_the_content_holds() -> None:
    block = "<think>in the text</think>text"

    assert said(content=block, thinking=" apart\n") == ("apart", ("text",))
    assert said(content=block, reasoning_content="first", thinking="later") == ("first", ("text",))
    assert said(content=block, reasoning="") == ("in the text", ("text",))
    assert said(content=block, thinking=None, reasoning="last") == ("last", ("text",))
    assert said(content=None, thinking="alone") == ("alone", ("",))


def test_parts_after_the_first_are_no_reasoning() -> None:
    parts = [{"type": "text", "text": text} for text in ("<think>a</think>b", "c</think>d")]

    assert said(content=parts) == ("a", ("b", "c</think>d"))
    assert said(content=[]) == ("", ())


@pytest.mark.parametrize(
    ("prompt", "written"),
    [
        ("<|assistant|>", "<think>\nwhy\n</think>\n\nso on"),
        ("<|assistant|><think>\n", "why\n</think>\n\nso on"),
        ("<|assistant|><think>", "why\n</think>\n\nso on"),
        ("<think>old</think> <|assistant|>", "<think>\nwhy\n</think>\n\nso on"),
    ],
)
def test_what_a_model_writes_opens_the_block_where_the_prompt_has_not(
    prompt: str, written: str
) -> None:
    told = Spoken(reasoning="why", texts=("\n\nso", " on"))

    assert told.written_after(prompt) == written
