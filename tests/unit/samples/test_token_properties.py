"""For random chats, templates and limits: the last n ids, the answers' tokens, and the counts."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.samples.answers import find_answers
from lehr.samples.chat import ChatTemplate
from lehr.samples.length import Overlong
from lehr.samples.prepare import prepare
from lehr.samples.rows import Chat, ChatRow
from lehr.samples.simple_chats import SimpleChats
from lehr.samples.templates import TEMPLATES
from lehr.samples.tokens import SampleTokenizer
from lehr.training.spec import DataSpec
from tests.support.canonical_rows import a_chat, table_of
from tests.support.toy_model import (
    MARKED_TEMPLATE,
    MARKS,
    PLAIN_TEMPLATE,
    SILENT_TEMPLATE,
    write_toy_model,
)

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
#: Moves a system turn into the last user's, so that a turn changes once others follow.
MOVING_TEMPLATE = (
    "{% set rules = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for message in messages if message.role != 'system' %}"
    "{{ '[' + message.role + ']' }}"
    "{% if message.role == 'user' and loop.index0 == loop.length - 2 %}{{ rules }}{% endif %}"
    "{{ message.content | trim }}{{ '</s>' if message.role == 'assistant' else '\n' }}"
    "{% endfor %}{{ '[assistant]' if add_generation_prompt }}"
)
#: Puts a mark before answers to questions with an a.
LEADING_TEMPLATE = (
    "{% for message in messages %}{{ '[' + message.role + ']' }}"
    "{% if message.role == 'assistant' %}"
    "{% if 'a' in messages[loop.index0 - 1].content %}{{ '!' }}{% endif %}"
    "{{ message.content }}{{ '</s>' }}"
    "{% else %}{{ message.content }}{{ '\n' }}{% endif %}{% endfor %}"
    "{{ '[assistant]' if add_generation_prompt }}"
)
TOY_TEMPLATES = (PLAIN_TEMPLATE, MARKED_TEMPLATE, SILENT_TEMPLATE)
ALL_TEMPLATES = (
    *TOY_TEMPLATES,
    MOVING_TEMPLATE,
    LEADING_TEMPLATE,
    *(template.source() for template in TEMPLATES.values()),
)

# Words of a template's own among them, and the space that templates trim.
texts = st.text(st.sampled_from("ab \n.<>|/s\u00e9\U0001f600"), max_size=12) | st.sampled_from(
    ["lehrprobe", "lehrsays1.", "assistant", " x ", "<think>a</think>b", "\ufdee", "</s>", ""]
)


@st.composite
def chats(draw: st.DrawFn) -> Chat:
    turns = [("system", draw(texts))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        turns += [("user", draw(texts)), ("assistant", draw(texts))]
    return a_chat(*turns[: len(turns) - draw(st.integers(0, 1))]).messages


@functools.cache
def toy(template: str) -> SampleTokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return SampleTokenizer.load(write_toy_model(Path(folder), template=template))


def as_the_requirements_say(chat: Chat) -> tuple[list[str], list[int]]:
    """Return tokens and mask of a chat by the words of the requirements, without a template."""
    tokens, trained = ["<s>"], [0]
    for turn in chat:
        said = [*turn["content"], "</s>"]
        tokens += [f"<|{turn['role']}|>", *said]
        trained += [0, *[int(turn["role"] == "assistant")] * len(said)]
    return tokens, trained


@given(chats(), st.sampled_from(TOY_TEMPLATES))
def test_the_mask_marks_exactly_the_answers_tokens(chat: Chat, template: str) -> None:
    # A mark in a text is a token of its own, which the words above do not know.
    if any(mark in turn["content"] for turn in chat for mark in (*MARKS, "\ufdee", "think>")):
        return
    if not any(turn["role"] == "assistant" for turn in chat):
        return
    tokenizer = toy(template)

    [found] = tokenizer.encode([ChatRow(messages=chat)])

    tokens, trained = as_the_requirements_say(chat)
    unknown = "\N{REPLACEMENT CHARACTER}"
    shown = [token if len(token) > 1 or ord(token) < 0x500 else unknown for token in tokens]
    assert tokenizer.pieces(found.sample) == shown
    assert found.trained.tolist() == trained


@given(
    st.lists(chats(), min_size=2, max_size=8),
    st.integers(8, 60),
    st.sampled_from(("truncate", "drop")),
)
def test_the_last_ids_are_kept_and_the_counts_add_up(
    rows: list[Chat], max_length: int, overlong: Overlong
) -> None:
    tokenizer = toy(PLAIN_TEMPLATE)
    rows = [chat for chat in rows if "think>" not in str(chat)]
    chance = a_chat(("user", "q"), ("assistant", "an answer that is always there")).messages
    table = table_of([ChatRow(messages=chat) for chat in (*rows, chance)], tokenizer)
    data = DataSpec(max_length=max_length, overlong=overlong, validation_split=0)
    begins = table.begins

    if overlong == "drop":
        data = data.model_copy(update={"max_length": max(max_length, int(table.lengths[-1]))})
    found = prepare(table, data=data, context=None)

    for at, row in enumerate(found.train.rows):
        ids = table.token_ids[begins[row] : table.segment_ends[row, 0]]
        sample = found.train[at]
        assert sample.token_ids.tolist() == ids[-(data.max_length or 0) :].tolist()
        assert sample.trained[1:].any()
    counts = found.facts.train
    assert counts.samples + counts.dropped + counts.untrainable == counts.rows == len(table)
    assert counts.affected == int(np.count_nonzero(table.lengths > (data.max_length or 0)))
    assert counts.trained_tokens == sum(sample.trained_count for sample in found.train)


@functools.cache
def known(source: str) -> tuple[ChatTemplate, SimpleChats]:
    template = ChatTemplate(source, special_tokens=SPECIAL)
    return template, SimpleChats(template)


@given(chats(), st.sampled_from(ALL_TEMPLATES), st.integers(0, 2))
def test_answers_that_are_recognised_are_those_that_are_looked_for(
    chat: Chat, source: str, shown: int
) -> None:
    template, simple = known(source)

    recognised = simple.find(chat, shown=shown)

    if recognised is not None:
        assert recognised == find_answers(template, chat, shown=shown)


@pytest.mark.parametrize("source", [PLAIN_TEMPLATE, SILENT_TEMPLATE])
@pytest.mark.parametrize("turns", [2, 3, 6, 7])
def test_plain_chats_are_recognised(source: str, turns: int) -> None:
    roles = ("user", "assistant")
    chat = a_chat(*((roles[at % 2], f"text {at}") for at in range(turns))).messages

    assert known(source)[1].find(chat) is not None


def test_an_answer_in_surroundings_that_were_not_learnt_is_looked_for() -> None:
    simple = known(LEADING_TEMPLATE)[1]
    # The made-up chats ask with an a in each question.
    learnt, other = (
        a_chat(("user", asked), ("assistant", "b")).messages for asked in ("as", "who?")
    )

    assert simple.find(learnt) == find_answers(known(LEADING_TEMPLATE)[0], learnt)
    assert simple.find(other) is None


@pytest.mark.parametrize("said", [" padded ", "<think>hm</think>so", "has \ufdee within"], ids=repr)
def test_what_a_template_may_treat_specially_is_looked_for(said: str) -> None:
    chat = a_chat(("user", "q"), ("assistant", said)).messages

    assert known(MOVING_TEMPLATE)[1].find(chat) is None
