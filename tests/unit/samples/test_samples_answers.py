"""Answers one by one: those of single rows, and both sides of a preference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lehr.samples.prepare import PreparedData, prepare
from lehr.samples.rows import PreferenceRow, Row, UnpairedRow
from lehr.samples.selection import Answer, Answers, Sample
from lehr.samples.tokens import SampleTokenizer
from lehr.training.spec import DataSpec
from tests.support.canonical_rows import table_of
from tests.support.toy_model import write_toy_model


@pytest.fixture
def tokenizer(tmp_path: Path) -> SampleTokenizer:
    return SampleTokenizer.load(write_toy_model(tmp_path, context=512))


def a_pair(number: int) -> Row:
    return PreferenceRow(prompt=f"Question {number}: ", chosen=f"yes {number}", rejected="no" * 6)


def prepared(rows: list[Row], tokenizer: SampleTokenizer, **data: Any) -> PreparedData:
    return prepare(table_of(rows, tokenizer), data=DataSpec(**data), context=tokenizer.context)


def ids(sample: Sample) -> list[int]:
    found: list[int] = sample.token_ids.tolist()
    return found


def test_a_pair_is_a_good_and_a_bad_answer_and_both_keep_the_pairs_cut(
    tokenizer: SampleTokenizer,
) -> None:
    rows = [a_pair(number) for number in range(5)]
    whole = prepared(rows, tokenizer, validation_split=0)
    data = prepared(rows, tokenizer, validation_split=0, max_length=20)

    answers = Answers(data.train)

    assert data.facts.train.affected == 5
    assert len(answers) == 10
    for at in range(5):
        chosen, rejected = data.train.sides(at)
        good, bad = answers[2 * at], answers[2 * at + 1]
        assert (ids(good.whole), good.is_wanted) == (ids(chosen), True)
        assert (ids(bad.whole), bad.is_wanted) == (ids(rejected), False)
        assert ids(good.prompt) == ids(bad.prompt)
        assert len(good.prompt) < len(whole.train.segments(at)[0])


def test_a_single_answer_keeps_its_label(tokenizer: SampleTokenizer) -> None:
    rows: list[Row] = [
        UnpairedRow(prompt="Question: ", completion=f"answer {number}", label=number % 3 == 0)
        for number in range(12)
    ]
    data = prepared(rows, tokenizer, validation_split=0.25)

    for side in (data.train, data.validation):
        answers = Answers(side)
        labels = [rows[number].label for number in side.rows]  # type: ignore[union-attr]
        assert [answers[at].is_wanted for at in range(len(answers))] == labels
        assert [ids(answers[at].whole) for at in range(len(answers))] == list(map(ids, side))


def test_copies_of_a_pair_stay_on_one_side_with_both_their_answers(
    tokenizer: SampleTokenizer,
) -> None:
    rows = [a_pair(number // 3) for number in range(30)]
    data = prepared(rows, tokenizer, validation_split=0.2)

    def told(side: Any) -> set[tuple[int, ...]]:
        answers = Answers(side)
        assert len(answers) == 2 * len(side)
        return {tuple(ids(answers[at].prompt)) for at in range(len(answers))}

    assert not told(data.train) & told(data.validation)


def test_a_prompt_with_anothers_answer_fits_by_losing_its_oldest_tokens() -> None:
    def a_sample(first: int, count: int, trained: int) -> Sample:
        return Sample(np.arange(first, first + count), np.full(count, trained, dtype=np.uint8))

    one = Answer(a_sample(0, 6, 0), a_sample(10, 2, 1), True)
    other = Answer(a_sample(20, 1, 0), a_sample(30, 5, 1), False)

    cut = one.answered_by(other, max_length=8)
    whole = one.answered_by(other, max_length=11)

    assert ids(cut) == [3, 4, 5, 30, 31, 32, 33, 34]
    assert cut.trained.tolist() == [0] * 3 + [1] * 5
    assert ids(whole) == [0, 1, 2, 3, 4, 5, 30, 31, 32, 33, 34]
