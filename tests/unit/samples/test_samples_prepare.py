"""The one path from rows to samples: what a plan shows is what a trainer trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.samples.prepare import PreparedData, describe, prepare
from lehr.samples.rows import Row
from lehr.samples.tokens import SampleTokenizer
from lehr.training.spec import DataSpec
from tests.support.toy_model import write_toy_model

NOTES = "Notes:" + " lorem ipsum" * 24 + " lorem"


def a_row(question: str, answer: str) -> Row:
    turns = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    return Row(kind="messages", messages=turns)


@pytest.fixture
def tokenizer(tmp_path: Path) -> SampleTokenizer:
    return SampleTokenizer.load(write_toy_model(tmp_path, context=512))


def prepared(rows: list[Row], tokenizer: SampleTokenizer, **data: Any) -> PreparedData:
    return prepare(rows, tokenizer=tokenizer, data=DataSpec(**data))


def test_the_log_says_how_many_tokens_are_trained(tokenizer: SampleTokenizer) -> None:
    data = prepared([a_row(NOTES, "Paris.")], tokenizer, max_length=512, validation_split=0)

    assert list(describe(data.facts)) == [
        "training: 1 of 1 rows are used; 7 of 311 tokens are trained"
    ]


def test_the_log_says_what_was_cut(tokenizer: SampleTokenizer) -> None:
    data = prepared([a_row(NOTES, "Paris.")], tokenizer, max_length=64, validation_split=0)

    assert list(describe(data.facts)) == [
        "training: 1 of 1 rows are used; 7 of 64 tokens are trained",
        "training: 1 sample is longer than 64 tokens, cut to the last 64; the longest has 311",
    ]


def test_a_job_that_drops_all_its_rows_is_refused_with_the_count(
    tokenizer: SampleTokenizer,
) -> None:
    rows = [a_row(NOTES, "Paris.")]

    with pytest.raises(InvalidArgument, match="0 of 1 training rows are left: 1 dropped") as no:
        prepared(rows, tokenizer, max_length=64, overlong="drop", validation_split=0)

    assert (no.value.reason, no.value.facts["longest"]) == ("NO_SAMPLES", "311")


def test_a_length_beyond_the_context_is_refused(tokenizer: SampleTokenizer) -> None:
    with pytest.raises(InvalidArgument, match="use at most 512"):
        prepared([a_row("a", "b")], tokenizer, max_length=513, validation_split=0)


def test_without_a_length_the_recommendation_is_used(tokenizer: SampleTokenizer) -> None:
    rows = [a_row("a" * 20, "b")] * 19 + [a_row("a" * 40, "b")]

    data = prepared(rows, tokenizer, validation_split=0)

    assert data.facts.max_length == 46
    assert data.facts.train.affected == 0


def test_bounded_sides_are_counted_after_the_bound(tokenizer: SampleTokenizer) -> None:
    rows = [a_row(f"q{number}", "a") for number in range(50)]

    data = prepared(rows, tokenizer, validation_split=0.2, max_train_samples=7, max_eval_samples=3)

    assert (data.facts.train.rows, data.facts.validation.rows) == (7, 3)
    assert (len(data.train), len(data.validation)) == (7, 3)


def test_equal_input_gives_equal_samples(tokenizer: SampleTokenizer) -> None:
    rows = [a_row(f"q{number}", "a") for number in range(20)]

    assert prepared(rows, tokenizer, max_length=64) == prepared(rows, tokenizer, max_length=64)


def test_a_validation_dataset_leaves_the_training_rows_whole(tokenizer: SampleTokenizer) -> None:
    rows = [a_row(f"q{number}", "a") for number in range(4)]
    spec = DataSpec(max_length=64, validation_dataset="held-out")

    data = prepare(rows, tokenizer=tokenizer, data=spec, validation_rows=[a_row("v", "a")])

    assert (len(data.train), len(data.validation)) == (4, 1)


def test_an_empty_dataset_is_refused(tokenizer: SampleTokenizer) -> None:
    with pytest.raises(InvalidArgument, match="the dataset has no rows"):
        prepared([], tokenizer)
