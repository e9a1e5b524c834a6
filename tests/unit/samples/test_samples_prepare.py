"""The one path from rows to samples: what a plan shows is what a trainer trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.samples.prepare import PreparedData, describe, prepare
from lehr.samples.rows import PreferenceRow, Row
from lehr.samples.tokens import SampleTokenizer
from lehr.training.spec import DataSpec
from tests.support.canonical_rows import a_chat, table_of
from tests.support.toy_model import write_toy_model

NOTES = "Notes:" + " lorem ipsum" * 24 + " lorem"


def a_row(question: str, answer: str) -> Row:
    return a_chat(("user", question), ("assistant", answer))


@pytest.fixture
def tokenizer(tmp_path: Path) -> SampleTokenizer:
    return SampleTokenizer.load(write_toy_model(tmp_path, context=512))


def prepared(
    rows: list[Row],
    tokenizer: SampleTokenizer,
    validation: list[Row] | None = None,
    **data: Any,
) -> PreparedData:
    if validation is not None:
        data["validation_dataset"] = "held-out"
    return prepare(
        table_of(rows, tokenizer),
        data=DataSpec(**data),
        context=tokenizer.context,
        validation_table=None if validation is None else table_of(validation, tokenizer),
    )


def ids_of(data: PreparedData) -> list[list[list[int]]]:
    return [
        [sample.token_ids.tolist() for sample in side] for side in (data.train, data.validation)
    ]


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

    first, again = (prepared(rows, tokenizer, max_length=64) for _ in range(2))

    assert ids_of(first) == ids_of(again)
    assert first.facts == again.facts


def test_a_validation_dataset_leaves_the_training_rows_whole(tokenizer: SampleTokenizer) -> None:
    rows = [a_row(f"q{number}", "a") for number in range(4)]

    data = prepared(rows, tokenizer, [a_row("v", "a")], max_length=64)

    assert (len(data.train), len(data.validation), data.facts.leaks.rows) == (4, 1, 0)


def test_copies_and_equal_prompts_in_a_validation_dataset_are_told(
    tokenizer: SampleTokenizer,
) -> None:
    rows = [a_row(f"q{number}", "a") for number in range(4)]
    held_out = [a_row("q1", "a"), a_row("q2", "another"), a_row("new", "a")]

    data = prepared(rows, tokenizer, held_out, max_length=64)

    assert (data.facts.leaks.copies, data.facts.leaks.prompts) == (1, 1)
    assert list(describe(data.facts))[-1] == (
        "2 of 3 validation rows are no fair test: 1 are trained word for word, 1 have a prompt "
        "that is trained; remove them from one of the two datasets"
    )


def test_copies_in_rows_that_are_not_used_do_not_leak(tokenizer: SampleTokenizer) -> None:
    rows = [a_row(f"q{number}", "a") for number in range(50)]

    some = prepared(rows, tokenizer, rows, max_length=64, max_train_samples=5)

    assert some.facts.leaks.copies == 5


def test_an_answer_that_is_never_cut_is_told(tokenizer: SampleTokenizer) -> None:
    rows: list[Row] = [
        PreferenceRow(prompt="ask", chosen="a" * size, rejected="b") for size in (3, 40)
    ]

    data = prepared(rows, tokenizer, max_length=16, validation_split=0)

    assert list(describe(data.facts))[1:] == [
        "training: 1 sample is longer than 16 tokens, dropped; the longest has 44",
        "1 rows have an answer that alone fills 16 tokens; answers that are compared are never "
        "cut, so they are dropped",
    ]


def test_an_empty_dataset_is_refused(tokenizer: SampleTokenizer) -> None:
    with pytest.raises(InvalidArgument, match="the dataset has no rows"):
        prepared([], tokenizer)


def test_packing_puts_every_sample_into_one_row(tokenizer: SampleTokenizer) -> None:
    rows = [a_row(f"q{number}", "a" * number) for number in range(1, 21)]

    data = prepared(rows, tokenizer, max_length=64, validation_split=0, packing=True)

    assert sorted(number for row in data.packs for number in row) == list(range(20))
    lengths = data.train.lengths
    assert all(sum(lengths[number] for number in row) <= 64 for row in data.packs)
    assert data.facts.packed_rows == data.row_count == len(data.packs) < 10
    assert (
        f"training: 20 samples are packed into {len(data.packs)} rows of at most 64 tokens; "
        "none of them sees another"
    ) in list(describe(data.facts))


def test_without_packing_each_sample_has_a_row(tokenizer: SampleTokenizer) -> None:
    data = prepared([a_row("q", "a"), a_row("p", "b")], tokenizer, validation_split=0)

    assert (data.packs, data.row_count, data.facts.packed_rows) == ((), 2, 0)


def rows_of_lengths(*counts: tuple[int, int]) -> list[Row]:
    """Return so many rows of so many tokens each, no two alike."""
    rows = []
    for count, tokens in counts:
        # Start, two role marks and two ends surround question and answer.
        rows += [
            a_row(f"{number:03}", "x" * (tokens - 8))
            for number in range(len(rows), len(rows) + count)
        ]
    return rows


LONG_TAIL = ((90, 200), (5, 900), (5, 5000))


def test_a_chosen_length_is_the_one_that_is_used(tmp_path: Path) -> None:
    roomy = SampleTokenizer.load(write_toy_model(tmp_path, context=32768))

    data = prepared(rows_of_lengths(*LONG_TAIL), roomy, max_length=3000, validation_split=0)

    counts = data.facts.train
    assert (counts.affected, counts.longest, counts.samples) == (5, 5000, 100)
    assert sorted(set(data.train.lengths.tolist())) == [200, 900, 3000]


def test_a_long_tail_does_not_allow_a_length_beyond_the_context(tmp_path: Path) -> None:
    model = SampleTokenizer.load(write_toy_model(tmp_path, context=2048))

    with pytest.raises(InvalidArgument, match="use at most 2048"):
        prepared(rows_of_lengths(*LONG_TAIL), model, max_length=4096)
