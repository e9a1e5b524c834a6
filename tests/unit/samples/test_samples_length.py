"""Cutting, dropping, counting and recommending: TR-01 and TR-11 of the requirements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.samples.length import Fitted, Overlong, fit, recommend
from lehr.samples.selection import Samples
from lehr.samples.table import TokenTable
from tests.support.canonical_rows import an_empty_table

TR_11 = np.array([200] * 90 + [900] * 5 + [5000] * 5)
Segments = list[list[int]]
"""Masks of a row's segments, one value a token."""


def a_table(*rows: Segments, kind: str = "messages", images: tuple[int, ...] = ()) -> TokenTable:
    """Build a table of which token ``n`` has the id ``n``."""
    masks = [np.array([one for part in row for one in part], dtype=np.uint8) for row in rows]
    lengths = [len(part) for row in rows for part in row]
    begins = np.cumsum([0, *map(len, masks)])
    last = [int(np.flatnonzero(mask)[-1]) + 1 if mask.any() else 0 for mask in masks]
    return replace(
        an_empty_table(),
        kind=kind,
        segment_ends=np.cumsum(lengths, dtype=np.int64).reshape(len(rows), -1),
        lines=np.arange(1, len(rows) + 1),
        token_ids=np.arange(begins[-1], dtype=np.int32),
        images=np.array(images or [0] * len(rows), dtype=np.int32),
        hidden=np.zeros(len(rows), dtype=np.int32),
        trained_counts=np.array([np.count_nonzero(mask) for mask in masks], dtype=np.int32),
        trained_ends=np.array(last, dtype=np.int32),
        trained=np.concatenate(masks),
    )


def fitted(table: TokenTable, max_length: int, overlong: Overlong = "truncate") -> Fitted:
    return fit(table, np.arange(len(table)), max_length=max_length, overlong=overlong)


def a_mask(length: int, trained: range) -> Segments:
    return [[int(at in trained) for at in range(length)]]


def test_truncate_keeps_exactly_the_last_tokens_with_the_answer() -> None:
    table = a_table(a_mask(311, range(304, 311)))

    found = fitted(table, 64)
    (kept,) = Samples(table, found)

    assert kept.token_ids.tolist() == list(range(247, 311))
    assert kept.trained_count == 7
    counts = found.counts
    assert (counts.affected, counts.dropped, counts.longest) == (1, 0, 311)
    assert (counts.trained_tokens, counts.tokens) == (7, 64)


def test_drop_leaves_the_overlong_row_out_and_counts_it() -> None:
    counts = fitted(a_table(a_mask(311, range(304, 311))), 64, "drop").counts

    assert (counts.rows, counts.samples, counts.affected, counts.dropped) == (1, 0, 1, 1)


def test_of_an_answer_longer_than_the_maximum_every_kept_token_is_trained() -> None:
    counts = fitted(a_table(a_mask(110, range(9, 110))), 64).counts

    assert (counts.samples, counts.trained_tokens) == (1, 64)


def test_a_row_of_which_no_answer_is_left_is_counted_on_its_own() -> None:
    counts = fitted(a_table(a_mask(216, range(2, 13))), 64).counts

    assert (counts.affected, counts.dropped, counts.untrainable) == (1, 0, 1)


@pytest.mark.parametrize(("last_trained", "samples"), [(52, 0), (53, 1)])
def test_nothing_predicts_the_first_token_that_is_kept(last_trained: int, samples: int) -> None:
    table = a_table(a_mask(60, range(last_trained, last_trained + 1)))

    assert fitted(table, 8).counts.samples == samples


def test_a_verdict_on_a_step_counts_even_on_the_first_token_that_is_kept() -> None:
    table = a_table(a_mask(60, range(52, 53)), kind="stepwise")

    assert fitted(table, 8).counts.samples == 1


def test_an_image_row_is_dropped_and_never_cut() -> None:
    table = a_table(a_mask(60, range(50, 60)), a_mask(60, range(50, 60)), images=(1, 0))

    found = fitted(table, 20)

    assert found.rows.tolist() == [1]
    counts = found.counts
    assert (counts.affected, counts.dropped, counts.dropped_images) == (2, 1, 1)


def test_a_preference_loses_the_oldest_tokens_of_its_prompt_on_both_sides() -> None:
    table = a_table([[0] * 10, [1] * 3, [1] * 5], kind="preference")

    found = fitted(table, 9)
    chosen, rejected = Samples(table, found).sides(0)

    assert chosen.token_ids.tolist() == [6, 7, 8, 9, 10, 11, 12]
    assert rejected.token_ids.tolist() == [6, 7, 8, 9, 13, 14, 15, 16, 17]
    counts = found.counts
    assert (counts.longest, counts.tokens, counts.trained_tokens) == (15, 16, 8)


@pytest.mark.parametrize(
    ("row", "kind"),
    [([[0] * 10, [1] * 3, [1] * 20], "preference"), ([[0] * 10, [1] * 20], "unpaired_preference")],
)
def test_an_answer_that_fills_the_maximum_alone_is_its_own_reason_and_never_cut(
    row: Segments, kind: str
) -> None:
    table = a_table(row, kind=kind)

    enough, too_short = fitted(table, 21).counts, fitted(table, 20).counts

    assert (enough.samples, enough.affected, enough.dropped) == (1, 1, 0)
    assert (too_short.samples, too_short.dropped, too_short.dropped_answers) == (0, 1, 1)


def test_a_prompt_alone_keeps_its_newest_tokens() -> None:
    table = a_table(a_mask(30, range(0)), kind="prompt_answer")

    found = fitted(table, 8)

    assert Samples(table, found)[0].token_ids.tolist() == list(range(22, 30))
    assert (found.counts.samples, found.counts.untrainable) == (1, 0)


rows = st.lists(
    st.lists(st.sampled_from((0, 1)), min_size=1, max_size=20).map(lambda mask: [mask]),
    min_size=1,
    max_size=8,
)


@given(rows, st.integers(min_value=1, max_value=20), st.sampled_from(("truncate", "drop")))
def test_every_row_is_used_or_counted_as_left_out(
    masks: list[Segments], max_length: int, overlong: Overlong
) -> None:
    table = a_table(*masks)

    found = fitted(table, max_length, overlong)
    kept, counts = list(Samples(table, found)), found.counts

    assert counts.samples + counts.dropped + counts.untrainable == counts.rows == len(masks)
    cut = int(np.count_nonzero(found.cuts))
    assert counts.affected >= counts.dropped + cut
    assert all(1 in sample.trained[1:] and len(sample) <= max_length for sample in kept)
    assert counts.tokens == sum(map(len, kept))
    assert counts.trained_tokens == sum(sample.trained_count for sample in kept)


def test_trained_tokens_are_counted_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(7)
    table = a_table(*([chance.integers(0, 2, 30).tolist()] for _ in range(50)))
    whole = fitted(table, 11).counts

    monkeypatch.setattr("lehr.samples.length._BLOCK_TOKENS", 70)

    assert fitted(table, 11).counts == whole
    assert whole.trained_tokens == sum(
        int(table.trained[at * 30 + 19 : at * 30 + 30].sum()) for at in range(50)
    )


def test_rows_that_are_cut_in_any_order_are_counted_alike() -> None:
    # A wrong step counts as one trained token, a right one too, though it is written as 2.
    table = a_table([[2, 1, 0, 2]], [[0, 1, 2, 2]], [[1, 2]], kind="stepwise")

    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        counts = fit(table, np.array(order), max_length=2, overlong="truncate").counts
        assert (counts.trained_tokens, counts.tokens) == (1 + 2 + 2, 6)


def test_only_rows_that_would_have_been_cut_are_told_apart() -> None:
    rows = (a_mask(60, range(50, 60)), a_mask(30, range(20, 30)))
    with_image = a_table(*rows, images=(1, 0))
    compared = a_table([[0] * 9, [1] * 9, [1] * 40], kind="preference")

    assert fitted(with_image, 40, "drop").counts.dropped_images == 0
    assert fitted(compared, 20, "drop").counts.dropped_answers == 0
    assert fitted(compared, 20, "drop").counts.dropped == 1


def test_hidden_answers_are_those_of_rows_that_are_used() -> None:
    rows = (a_mask(60, range(50, 60)), a_mask(30, range(20, 30)))
    table = replace(a_table(*rows), hidden=np.array([5, 2], dtype=np.int32))

    assert fitted(table, 40, "drop").counts.hidden == 2
    assert fitted(table, 40).counts.hidden == 7


def test_a_length_that_only_rounding_would_lift_above_the_context_is_no_cap() -> None:
    advice = recommend(np.array([100] * 99 + [200]), context=110)

    assert (advice.max_length, advice.is_capped, advice.warning) == (110, False, None)


def test_no_length_is_shorter_than_a_spec_may_ask_for() -> None:
    assert recommend(np.array([3, 4]), context=None).max_length == 8


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
    assert recommend(np.array([70, 80, 90]), context=None).max_length == 90


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (19, 19), (20, 19), (21, 20), (100, 95)])
def test_the_share_is_counted_in_whole_rows(count: int, rank: int) -> None:
    lengths = np.array([64 * at for at in range(1, count + 1)])

    assert recommend(lengths, context=None).max_length == 64 * rank


@given(
    st.lists(st.integers(min_value=1, max_value=4000), min_size=1, max_size=60),
    st.none() | st.integers(min_value=8, max_value=4096),
)
def test_95_percent_are_whole_unless_the_context_forbids_it(
    lengths: list[int], context: int | None
) -> None:
    advice = recommend(np.array(lengths), context=context)

    whole = sum(length <= advice.max_length for length in lengths)
    assert advice.is_capped or whole * 100 >= 95 * len(lengths)
    assert advice.max_length <= max(8, *lengths)
    assert context is None or advice.max_length <= context
