"""Cutting, dropping, counting and recommending: TR-01 and TR-11 of the requirements."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.samples.length import fit, recommend
from lehr.samples.tokens import Sample

TR_11 = [200] * 90 + [900] * 5 + [5000] * 5


def a_sample(length: int, trained: range) -> Sample:
    return Sample(array("i", range(length)), bytes(int(at in trained) for at in range(length)))


samples = st.lists(
    st.lists(st.sampled_from((0, 1)), min_size=1, max_size=20).map(
        lambda mask: Sample(array("i", range(len(mask))), bytes(mask))
    ),
    max_size=8,
)


def test_truncate_keeps_exactly_the_last_tokens_with_the_answer() -> None:
    row_a = a_sample(311, range(304, 311))

    (kept,), counts = fit([row_a], max_length=64, overlong="truncate")

    assert list(kept.token_ids) == list(range(247, 311))
    assert kept.trained_tokens == 7
    assert (counts.affected, counts.dropped, counts.longest) == (1, 0, 311)
    assert (counts.trained_tokens, counts.tokens) == (7, 64)


def test_drop_leaves_the_overlong_row_out_and_counts_it() -> None:
    kept, counts = fit([a_sample(311, range(304, 311))], max_length=64, overlong="drop")

    assert kept == []
    assert (counts.rows, counts.samples, counts.affected, counts.dropped) == (1, 0, 1, 1)


def test_of_an_answer_longer_than_the_maximum_every_kept_token_is_trained() -> None:
    row_b = a_sample(110, range(9, 110))

    (kept,), _ = fit([row_b], max_length=64, overlong="truncate")

    assert kept.trained_tokens == 64


def test_a_row_of_which_no_answer_is_left_is_counted_on_its_own() -> None:
    row_c = a_sample(216, range(2, 13))

    kept, counts = fit([row_c], max_length=64, overlong="truncate")

    assert kept == []
    assert (counts.affected, counts.dropped, counts.untrainable) == (1, 0, 1)


@given(samples, st.integers(min_value=1, max_value=20), st.sampled_from(("truncate", "drop")))
def test_every_row_is_used_or_counted_as_left_out(
    rows: list[Sample], max_length: int, overlong: str
) -> None:
    kept, counts = fit(rows, max_length=max_length, overlong=overlong)  # type: ignore[arg-type]

    assert counts.samples + counts.dropped + counts.untrainable == counts.rows == len(rows)
    assert all(sample.is_trainable and len(sample) <= max_length for sample in kept)
    assert counts.tokens == sum(map(len, kept))


def test_the_recommendation_covers_95_of_100_rows() -> None:
    advice = recommend(TR_11, context=32768)

    assert 900 <= advice.max_length <= 4999
    assert (advice.would_cut, advice.longest, advice.warning) == (5, 5000, None)


def test_the_recommendation_is_capped_by_the_context_with_a_warning() -> None:
    advice = recommend(TR_11, context=512)

    assert advice.max_length == 512
    assert advice.warning == (
        "the model reads at most 512 tokens: 10 of 100 rows (10 %) would be cut"
    )


def test_the_recommendation_stays_within_a_middling_context() -> None:
    assert recommend(TR_11, context=2048).max_length == 960


def test_the_recommendation_is_not_rounded_beyond_the_longest_row() -> None:
    assert recommend([70, 80, 90], context=None).max_length == 90


@pytest.mark.parametrize(("rows", "rank"), [(1, 1), (19, 19), (20, 19), (21, 20), (100, 95)])
def test_the_share_is_counted_in_whole_rows(rows: int, rank: int) -> None:
    lengths = [64 * at for at in range(1, rows + 1)]

    assert recommend(lengths, context=None).max_length == 64 * rank


@given(
    st.lists(st.integers(min_value=1, max_value=4000), min_size=1, max_size=60),
    st.none() | st.integers(min_value=8, max_value=4096),
)
def test_95_percent_are_whole_unless_the_context_forbids_it(
    lengths: list[int], context: int | None
) -> None:
    advice = recommend(lengths, context=context)

    whole = sum(length <= advice.max_length for length in lengths)
    assert advice.is_capped or whole * 100 >= 95 * len(lengths)
    assert advice.max_length <= max(8, *lengths)
    assert context is None or advice.max_length <= context
