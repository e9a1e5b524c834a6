"""Which tokens are trained: the exact numbers of the requirements, with the toy tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.samples.rows import Row, read_row
from lehr.samples.tokens import Sample, SampleTokenizer
from tests.support.toy_model import (
    MARKED_TEMPLATE,
    PLAIN_TEMPLATE,
    SHOUTING_TEMPLATE,
    SILENT_TEMPLATE,
    write_toy_model,
)

NOTES = "Notes:" + " lorem ipsum" * 24 + " lorem"


def a_chat(*turns: tuple[str, str], **more: Any) -> Row:
    messages = [{"role": role, "content": content} for role, content in turns]
    return read_row(json.dumps({"messages": messages, **more}), number=1)


def a_completion(prompt: Any, completion: Any) -> Row:
    return read_row(json.dumps({"prompt": prompt, "completion": completion}), number=1)


def sample_of(row: Row, folder: Path, **model: Any) -> tuple[Sample, list[str]]:
    """Return the sample and the text of its trained tokens."""
    tokenizer = SampleTokenizer.load(write_toy_model(folder, **model))
    (sample,) = tokenizer.encode([row])
    pieces = tokenizer.pieces(sample)
    return sample, [piece for piece, trained in zip(pieces, sample.trained, strict=True) if trained]


@pytest.mark.parametrize("template", [PLAIN_TEMPLATE, MARKED_TEMPLATE, SILENT_TEMPLATE])
def test_seven_of_311_tokens_are_trained_whether_or_not_the_template_marks_answers(
    tmp_path: Path, template: str
) -> None:
    row = a_chat(("user", NOTES), ("assistant", "Paris."))

    sample, trained = sample_of(row, tmp_path, template=template)

    assert len(sample) == 311
    assert trained == [*"Paris.", "</s>"]


def test_a_template_that_changes_the_answer_is_refused(tmp_path: Path) -> None:
    row = a_chat(("user", NOTES), ("assistant", "Paris."))

    with pytest.raises(InvalidArgument) as refused:
        sample_of(row, tmp_path, template=SHOUTING_TEMPLATE)

    assert refused.value.reason == "TEMPLATE_HIDES_ANSWERS"
    assert refused.value.facts["row"] == "1"


@pytest.mark.parametrize("pad_token", ["</s>", "<pad>"])
def test_the_end_of_an_answer_is_trained_whatever_the_pad_token(
    tmp_path: Path, pad_token: str
) -> None:
    short, long = (
        a_chat(("user", "Hi"), ("assistant", "Yo")),
        a_chat(("user", "Hi"), ("assistant", "Yo yo yo")),
    )

    _, trained_short = sample_of(short, tmp_path / "a", pad_token=pad_token)
    _, trained_long = sample_of(long, tmp_path / "b", pad_token=pad_token)

    assert trained_short == [*"Yo", "</s>"]
    assert trained_long == [*"Yo yo yo", "</s>"]


def test_every_answer_of_a_long_chat_is_trained_with_its_end(tmp_path: Path) -> None:
    row = a_chat(
        ("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")
    )

    _, trained = sample_of(row, tmp_path)

    assert trained == ["b", "</s>", "d", "</s>"]


def test_a_chat_that_begins_with_an_answer_is_understood(tmp_path: Path) -> None:
    row = a_chat(("assistant", "I start"), ("user", "Ok"))

    _, trained = sample_of(row, tmp_path)

    assert trained == [*"I start", "</s>"]


def test_a_repeated_answer_is_found_in_its_own_place(tmp_path: Path) -> None:
    row = a_chat(("user", "lehrprobe"), ("assistant", "lehrprobe"))

    sample, trained = sample_of(row, tmp_path, template=SILENT_TEMPLATE)

    assert trained == [*"lehrprobe", "</s>"]
    assert sample.trained[:12].count(1) == 0


def test_marks_that_stop_short_of_the_end_token_are_completed(tmp_path: Path) -> None:
    short = MARKED_TEMPLATE.replace(
        "{{ message['content'] + '</s>' }}{% endgeneration %}",
        "{{ message['content'] }}{% endgeneration %}{{ '</s>' }}",
    )
    row = a_chat(("user", "Hi"), ("assistant", "Yo"))

    _, trained = sample_of(row, tmp_path, template=short)

    assert trained == [*"Yo", "</s>"]


def test_layout_after_the_end_token_is_not_trained(tmp_path: Path) -> None:
    spaced = PLAIN_TEMPLATE.replace("'</s>'", "'</s>\n'")
    row = a_chat(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))

    _, trained = sample_of(row, tmp_path, template=spaced)

    assert trained == ["b", "</s>", "d", "</s>"]


def test_a_completion_of_text_is_trained_with_one_end_token(tmp_path: Path) -> None:
    sample, trained = sample_of(a_completion("2+2=", "4"), tmp_path)

    assert trained == ["4", "</s>"]
    assert len(sample) == 6


def test_a_completion_that_ends_itself_gets_no_second_end_token(tmp_path: Path) -> None:
    sample, trained = sample_of(a_completion("2+2=", "4</s>"), tmp_path)

    assert trained == ["4", "</s>"]
    assert len(sample) == 6


@pytest.mark.parametrize("template", [PLAIN_TEMPLATE, MARKED_TEMPLATE])
def test_answers_inside_a_prompt_of_messages_are_not_trained(tmp_path: Path, template: str) -> None:
    prompt = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    row = a_completion(prompt, [{"role": "assistant", "content": "d"}])

    _, trained = sample_of(row, tmp_path, template=template)

    assert trained == ["d", "</s>"]


def test_a_model_without_a_chat_template_cannot_read_chats(tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))

    with pytest.raises(InvalidArgument, match="no chat template"):
        list(SampleTokenizer.load(folder).encode([a_chat(("user", "a"), ("assistant", "b"))]))


def test_nothing_predicts_the_first_token_so_alone_it_is_not_trainable(tmp_path: Path) -> None:
    sample, _ = sample_of(a_chat(("user", "a"), ("assistant", "b")), tmp_path)

    assert sample.last(1).trained_tokens == 1
    assert not sample.last(1).is_trainable
    assert sample.last(2).is_trainable


def test_labels_repeat_the_trained_ids_and_ignore_the_rest(tmp_path: Path) -> None:
    sample, _ = sample_of(a_completion("a", "b"), tmp_path)

    labels = sample.labels()

    assert labels == [-100, sample.token_ids[1], sample.token_ids[2]]


def test_a_template_that_refuses_a_row_names_it(tmp_path: Path) -> None:
    strict = "{{ raise_exception('roles must alternate') }}"

    with pytest.raises(InvalidArgument, match="roles must alternate") as refused:
        sample_of(a_chat(("user", "a"), ("assistant", "b")), tmp_path, template=strict)

    assert refused.value.reason == "TEMPLATE_REFUSES_ROW"
