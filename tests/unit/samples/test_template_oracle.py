"""Bundled templates write what their formats are described to be, and what is learnt is exact."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from lehr.errors import InvalidArgument
from lehr.samples.length import Overlong
from lehr.samples.prepare import prepare
from lehr.samples.rows import ChatRow, PreferenceRow, PromptAnswerRow
from lehr.samples.templates import TEMPLATES
from lehr.samples.tokens import SampleTokenizer
from lehr.training.spec import DataSpec
from tests.support.canonical_rows import a_chat, table_of
from tests.support.toy_model import write_toy_model
from tests.unit.samples.template_oracle import Turn, render

#: Words of the formats themselves, which a text may hold and which then mean nothing.
MARKS = (
    *("</s>", "<s>", "[INST]", " [/INST]", "<|im_start|>assistant\n", "<|im_end|>", "<|eot_id|>"),
    *("<end_of_turn>", "<start_of_turn>model\n", "### Response:\n", "Assistant: ", "<|assistant|>"),
    *("{{ bos_token }}", "{% generation %}", "\ufdd0", "\ufdef", "lehrprobe", "lehrsays0."),
)
texts = st.text(max_size=8) | st.text("a \n\t\r", max_size=6) | st.sampled_from(MARKS) | st.just("")
texts = st.lists(texts, max_size=3).map("".join).filter(lambda text: "think>" not in text)
each_template = pytest.mark.parametrize("name", sorted(TEMPLATES))


@st.composite
def chats(draw: st.DrawFn, *, most: int = 4) -> list[Turn]:
    """Return turns: at most two of rules, then questions and answers, maybe without the last."""
    rules = st.tuples(st.sampled_from(("system", "developer")), texts)
    turns = draw(st.lists(rules, max_size=2))
    for _ in range(draw(st.integers(1, most))):
        turns += [("user", draw(texts)), ("assistant", draw(texts))]
    return turns[: len(turns) - draw(st.integers(0, 1))]


@functools.cache
def tokenizer_of(name: str) -> SampleTokenizer:
    """Return the toy tokenizer with the marks of a bundled template, each a token."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_toy_model(Path(folder)) / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(path))
        needs = TEMPLATES[name].needs
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in needs])
        tokenizer.save(str(path))
        return SampleTokenizer.load_bundled(Path(folder), name)


@functools.cache
def plain_tokenizer(name: str) -> Tokenizer:
    """Return the same tokenizer by itself, to count the tokens of single pieces."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_toy_model(Path(folder)) / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(path))
        needs = TEMPLATES[name].needs
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in needs])
        return tokenizer


def expected_spans(pieces: Sequence[tuple[str, bool]]) -> list[tuple[int, int]]:
    ends = accumulate((len(text) for text, _ in pieces), initial=0)
    return [span for span, (_, learnt) in zip(pairwise(ends), pieces, strict=True) if learnt]


@each_template
@given(turns=chats())
def test_text_and_answers_are_those_of_the_published_format(turns: list[Turn], name: str) -> None:
    pieces = render(name, turns)

    [found] = tokenizer_of(name).render(a_chat(*turns))

    assert found.text == "".join(text for text, _ in pieces)
    assert [(span.start, span.end) for span in found.spans] == expected_spans(pieces)
    assert found.hidden_answer_count == 0
    assert not found.is_plain


@each_template
@given(turns=chats())
def test_exactly_the_tokens_of_answers_are_trained(turns: list[Turn], name: str) -> None:
    pieces = render(name, turns)
    alone = plain_tokenizer(name)
    # Pieces that together make a mark are one token, which belongs to the answer.
    encoded = [alone.encode(text, add_special_tokens=False).ids for text, _ in pieces]
    together = alone.encode("".join(text for text, _ in pieces), add_special_tokens=False).ids

    [row] = tokenizer_of(name).encode([a_chat(*turns)])

    assert row.token_ids.tolist() == together
    if [token for ids in encoded for token in ids] == together:
        learnt = [
            int(is_trained)
            for ids, (_, is_trained) in zip(encoded, pieces, strict=True)
            for _ in ids
        ]
        assert row.trained.tolist() == learnt


@each_template
@given(turns=chats(), answers=st.integers(0, 3))
def test_answers_to_a_prompt_are_trained_from_its_end(
    turns: list[Turn], name: str, answers: int
) -> None:
    places = [at for at, (role, _) in enumerate(turns) if role == "assistant"][:answers]
    cut = places[-1] + 1 if places else 1
    if not any(role == "assistant" for role, _ in turns[cut:]):
        return
    shown, rest = a_chat(*turns[:cut]).messages, a_chat(*turns[cut:]).messages
    pieces = render(name, turns)
    written = expected_spans(pieces)[len(places) :]

    sides = tokenizer_of(name).render(PreferenceRow(prompt=shown, chosen=rest, rejected=rest))

    for side in sides:
        assert side.text == "".join(text for text, _ in pieces)
        assert [(span.start, span.end) for span in side.spans] == written


@each_template
@settings(max_examples=30)
@given(
    rows=st.lists(chats(most=2), min_size=1, max_size=6),
    length=st.integers(8, 80),
    overlong=st.sampled_from(("truncate", "drop")),
)
def test_what_is_cut_keeps_the_last_ids_and_all_rows_are_accounted_for(
    rows: list[list[Turn]], name: str, length: int, overlong: Overlong
) -> None:
    whole = [tokenizer_of(name).encode([a_chat(*turns)])[0] for turns in rows]
    ids = [one.token_ids.tolist() for one in whole]
    masks = [one.trained.tolist() for one in whole]
    fits = [len(one) <= length for one in ids]
    keeps = [fit or overlong == "truncate" for fit in fits]
    # The first token that is kept is predicted by nothing.
    learns = [any(mask[-length:][1:]) for mask in masks]
    used = [at for at in range(len(rows)) if keeps[at] and learns[at]]
    table = table_of([a_chat(*turns) for turns in rows], tokenizer_of(name))
    data = DataSpec(max_length=length, overlong=overlong, validation_split=0)

    if not used:
        with pytest.raises(InvalidArgument, match=f"0 of {len(rows)} training rows are left"):
            prepare(table, data=data, context=None)
        return
    found = prepare(table, data=data, context=None)

    assert sorted(found.train.rows.tolist()) == used
    for row, sample in zip(found.train.rows.tolist(), found.train, strict=True):
        assert sample.token_ids.tolist() == ids[row][-length:]
        assert sample.trained.tolist() == masks[row][-length:]
    counts = found.facts.train
    dropped = keeps.count(False)
    cut = sum(not fits[at] for at in used)
    assert dataclasses.astuple(counts)[:4] == (len(rows), len(used), fits.count(False), dropped)
    untrainable = sum(keeps[at] and not learns[at] for at in range(len(rows)))
    assert counts.untrainable == untrainable
    assert (len(used) - cut) + cut + dropped + untrainable == counts.rows
    assert counts.longest == max(map(len, ids))
    assert counts.tokens == sum(len(ids[at][-length:]) for at in used)
    assert counts.trained_tokens == sum(sum(masks[at][-length:]) for at in used)


@each_template
@given(turns=chats())
def test_a_prompt_ends_where_the_answer_to_it_begins(turns: list[Turn], name: str) -> None:
    questions = [at for at, (role, _) in enumerate(turns) if role == "user"]
    shown = turns[: questions[-1] + 1]
    pieces = render(name, [*shown, ("assistant", "")])
    written = "".join(text for text, _ in pieces[: -1 if pieces[-1][1] else -2])
    # The space before an answer belongs to its first word, which the model writes.
    expected = written.removesuffix(" ") if name == "mistral" else written

    [found] = tokenizer_of(name).render(
        PromptAnswerRow(prompt=a_chat(*shown).messages, answer="", columns={})
    )

    assert found.text == expected
    assert not found.spans


@each_template
@given(turns=chats())
def test_tools_and_their_calls_have_no_place_whatever_the_chat(
    turns: list[Turn], name: str
) -> None:
    chat = a_chat(*turns).messages
    tool = {"type": "function", "function": {"name": "now", "parameters": {}}}
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "now"}}]}
    question = {"role": "user", "content": "When?"}

    for row in (
        ChatRow(messages=(*chat, question, call)),
        ChatRow(messages=chat, tools=(tool,)),
    ):
        with pytest.raises(InvalidArgument, match=f"the {name} template has no place for tools"):
            tokenizer_of(name).render(row)


@each_template
def test_ten_thousand_turns_are_rendered_with_all_their_answers(name: str) -> None:
    roles = ("user", "assistant")
    turns = [(roles[at % 2], f"text {at}") for at in range(10_000)]
    pieces = render(name, turns)

    [found] = tokenizer_of(name).render(a_chat(*turns))

    assert found.text == "".join(text for text, _ in pieces)
    assert [(span.start, span.end) for span in found.spans] == expected_spans(pieces)
