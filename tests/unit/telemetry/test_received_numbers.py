"""What has arrived of a count: the set is the same in any order, and the watermark has no gap."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.telemetry.domain.intervals import Intervals

SPANS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair))),
    max_size=15,
)


@given(SPANS, st.randoms(use_true_random=False))
def test_it_is_the_set_of_all_numbers_whatever_the_order(
    spans: list[tuple[int, int]], random: Random
) -> None:
    numbers = {number for first, last in spans for number in range(first, last + 1)}
    shuffled = [*spans, *spans[:3]]
    random.shuffle(shuffled)

    received = Intervals()
    for span in shuffled:
        received = received.add([span])

    assert received == Intervals.of(spans)
    assert {n for first, last in received.spans for n in range(first, last + 1)} == numbers
    gaps = [(one[1] + 1, two[0] - 1) for one, two in zip(received.spans, received.spans[1:])]  # noqa: B905
    assert all(first <= last for first, last in gaps)


@given(SPANS)
def test_the_watermark_is_the_last_number_before_the_first_gap(
    spans: list[tuple[int, int]],
) -> None:
    numbers = {number for first, last in spans for number in range(first, last + 1)}
    watermark = Intervals.of(spans).watermark

    assert set(range(1, watermark + 1)) <= numbers
    assert Intervals.of(spans).has_gap == (max(numbers, default=0) > watermark)
    assert watermark + 1 not in numbers


@pytest.mark.parametrize(
    ("spans", "watermark"),
    [([], 0), ([(2, 9)], 0), ([(1, 1)], 1), ([(1, 3), (5, 6)], 3), ([(5, 6), (1, 4)], 6)],
)
def test_watermarks_by_hand(spans: list[tuple[int, int]], watermark: int) -> None:
    assert Intervals.of(spans).watermark == watermark
