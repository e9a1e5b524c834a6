"""Which tokens are trained: the exact numbers of the requirements, with the toy tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from lehr.errors import InvalidArgument
from lehr.samples.rows import (
    PreferenceRow,
    PromptAnswerRow,
    PromptCompletionRow,
    Row,
    StepwiseRow,
    TextRow,
    UnpairedRow,
)
from lehr.samples.selection import Sample
from lehr.samples.tabulate import tabulate
from lehr.samples.tokens import RowTokens, SampleTokenizer
from tests.support.canonical_rows import a_chat, located
from tests.support.toy_model import (
    MARKED_TEMPLATE,
    PLAIN_TEMPLATE,
    SHOUTING_TEMPLATE,
    SILENT_TEMPLATE,
    write_toy_model,
)

NOTES = "Notes:" + " lorem ipsum" * 24 + " lorem"


def a_completion(prompt: Any, completion: Any) -> Row:
    return PromptCompletionRow(prompt=prompt, completion=completion)


def sample_of(row: Row, folder: Path, **model: Any) -> tuple[Sample, list[str]]:
    """Return the sample and the text of its trained tokens."""
    tokenizer = SampleTokenizer.load(write_toy_model(folder, **model))
    (found,) = tokenizer.encode([row])
    sample = found.sample
    pieces = tokenizer.pieces(sample)
    return sample, [piece for piece, trained in zip(pieces, sample.trained, strict=True) if trained]


def segments_of(row: Row, folder: Path, **model: Any) -> list[str]:
    """Return the text of each segment of a row's tokens."""
    tokenizer = SampleTokenizer.load(write_toy_model(folder, **model))
    (found,) = tokenizer.encode([row])
    begins = (0, *found.segment_ends[:-1])
    return [
        "".join(tokenizer.pieces(_part(found, begin, end)))
        for begin, end in zip(begins, found.segment_ends, strict=True)
    ]


def _part(found: RowTokens, begin: int, end: int) -> Sample:
    return Sample(found.token_ids[begin:end], found.trained[begin:end])


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

    tokenizer = SampleTokenizer.load(write_toy_model(tmp_path, template=SHOUTING_TEMPLATE))
    empty = a_chat(("user", "a"), ("assistant", "1"))

    with pytest.raises(InvalidArgument, match="line 2") as refused:
        tabulate(located([empty, row]), tokenizer)

    assert refused.value.reason == "TEMPLATE_HIDES_ANSWERS"
    assert (refused.value.facts["line"], refused.value.facts["file"]) == ("2", "0")


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
    assert not sample.trained[:12].any()


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
    prompt = a_chat(("user", "a"), ("assistant", "b"), ("user", "c")).messages
    row = a_completion(prompt, a_chat(("assistant", "d")).messages)

    _, trained = sample_of(row, tmp_path, template=template)

    assert trained == ["d", "</s>"]


def test_a_model_without_a_chat_template_cannot_read_chats(tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))

    with pytest.raises(InvalidArgument, match="no chat template"):
        list(SampleTokenizer.load(folder).encode([a_chat(("user", "a"), ("assistant", "b"))]))


def test_labels_repeat_the_trained_ids_and_ignore_the_rest(tmp_path: Path) -> None:
    sample, _ = sample_of(a_completion("a", "b"), tmp_path)

    labels = sample.labels().tolist()

    assert labels == [-100, sample.token_ids[1], sample.token_ids[2]]


def test_a_template_that_refuses_a_row_names_it(tmp_path: Path) -> None:
    strict = "{{ raise_exception('roles must alternate') }}"

    with pytest.raises(InvalidArgument, match="roles must alternate") as refused:
        sample_of(a_chat(("user", "a"), ("assistant", "b")), tmp_path, template=strict)

    assert refused.value.reason == "TEMPLATE_REFUSES_ROW"


@pytest.mark.parametrize("text", ["It rains.", "It rains.</s>"])
def test_a_text_is_trained_whole_with_one_end_token(tmp_path: Path, text: str) -> None:
    sample, trained = sample_of(TextRow(text=text), tmp_path)

    assert trained == [*"It rains.", "</s>"]
    assert len(sample) == 10


@pytest.mark.parametrize("text", ["It rains.", "It rains.</s>"])
def test_an_end_token_that_the_tokenizer_adds_is_the_only_one_and_trained(
    tmp_path: Path, text: str
) -> None:
    folder = write_toy_model(tmp_path)
    whole = Tokenizer.from_file(str(folder / "tokenizer.json"))
    whole.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    whole.save(str(folder / "tokenizer.json"))
    tokenizer = SampleTokenizer.load(folder)

    (found,) = tokenizer.encode([TextRow(text=text)])

    assert tokenizer.pieces(found.sample) == ["<s>", *"It rains.", "</s>"]
    assert found.trained.tolist() == [0, *[1] * 10]


def test_the_sides_of_a_preference_share_their_prompt_and_are_trained_to_their_end(
    tmp_path: Path,
) -> None:
    row = PreferenceRow(
        prompt=a_chat(("user", "Hi")).messages,
        chosen=a_chat(("assistant", "Yo")).messages,
        rejected=a_chat(("assistant", "No")).messages,
    )

    assert segments_of(row, tmp_path) == ["<s><|user|>Hi</s><|assistant|>", "Yo</s>", "No</s>"]
    _, trained = sample_of(row, tmp_path)
    assert trained == [*"Yo", "</s>", *"No", "</s>"]


def test_answers_that_begin_alike_keep_their_beginning_on_both_sides(tmp_path: Path) -> None:
    row = PreferenceRow(prompt="ask:", chosen="yes", rejected="yellow")

    assert segments_of(row, tmp_path) == ["ask:", "yes</s>", "yellow</s>"]


def test_one_answer_with_a_verdict_is_apart_from_its_prompt(tmp_path: Path) -> None:
    row = UnpairedRow(prompt="ask:", completion="yes", label=True)

    table = tabulate(located([row]), SampleTokenizer.load(write_toy_model(tmp_path)))

    assert table.labels.tolist() == [1]
    assert table.segment_ends.tolist() == [[4, 8]]


@pytest.mark.parametrize(
    ("prompt", "text"),
    [("ask:", "ask:"), (a_chat(("user", "Hi")).messages, "<s><|user|>Hi</s><|assistant|>")],
)
def test_of_a_prompt_alone_nothing_is_trained(tmp_path: Path, prompt: Any, text: str) -> None:
    row = PromptAnswerRow(prompt=prompt, answer="4", columns={})

    assert segments_of(row, tmp_path) == [text]
    assert sample_of(row, tmp_path)[1] == []


def test_each_step_bears_its_verdict_on_the_token_that_closes_it(tmp_path: Path) -> None:
    row = StepwiseRow(prompt="2+2", completions=("two", "four"), labels=(True, False))

    sample, trained = sample_of(row, tmp_path)

    assert segments_of(row, tmp_path) == ["<s>2+2two\nfour\n"]
    assert trained == ["\n", "\n"]
    assert sample.trained[sample.trained > 0].tolist() == [2, 1]


def test_rows_with_images_are_refused_by_a_model_that_reads_text(tmp_path: Path) -> None:
    row = a_chat(("user", "Hi"), ("assistant", "Yo"), images=("a.png",))

    with pytest.raises(InvalidArgument, match="reads text only") as refused:
        sample_of(row, tmp_path)

    assert refused.value.reason == "IMAGES_NOT_READ"


def test_a_template_of_the_users_choice_replaces_the_models_own(tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path)
    row = a_chat(("user", "Hi"), ("assistant", "Yo"))

    tokenizer = SampleTokenizer.load_bundled(folder, "zephyr")

    text = tokenizer.render(row)[0].text
    assert text.startswith("<|user|>\nHi")
    assert text != SampleTokenizer.load(folder).render(row)[0].text
    assert tokenizer.digest != SampleTokenizer.load(folder).digest
    assert SampleTokenizer.load_bundled(folder, None).digest == SampleTokenizer.load(folder).digest
