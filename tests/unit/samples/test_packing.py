"""Packing loses no sample, cuts none, and wastes little."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.samples.packing import pack

CAPACITY = 64
LENGTHS = st.lists(st.integers(1, CAPACITY), max_size=200)


@given(LENGTHS)
def test_every_sample_is_in_one_row_and_every_row_fits(lengths: list[int]) -> None:
    rows = pack(lengths, capacity=CAPACITY)

    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[number] for number in row) <= CAPACITY for row in rows)


@given(LENGTHS)
def test_no_two_rows_would_fit_into_one(lengths: list[int]) -> None:
    rows = pack(lengths, capacity=CAPACITY)

    fills = sorted(sum(lengths[number] for number in row) for row in rows)
    assert all(first + second > CAPACITY for first, second in itertools.pairwise(fills))


@given(LENGTHS)
def test_rows_are_never_more_than_the_bound_of_best_fit_decreasing(lengths: list[int]) -> None:
    rows = pack(lengths, capacity=CAPACITY)

    fewest = -(-sum(lengths) // CAPACITY)
    # Any algorithm in which no two rows fit together needs less than twice the fewest.
    assert len(rows) <= 2 * fewest


def test_a_sample_goes_where_it_leaves_the_least_room() -> None:
    assert pack([6, 5, 4, 3], capacity=10) == [[0, 2], [1, 3]]


def test_equal_lengths_keep_their_order() -> None:
    assert pack([2, 2, 2, 2], capacity=4) == [[0, 1], [2, 3]]
    many = pack([2, 1] * 500, capacity=4)
    assert [number for row in many for number in row] == [*range(0, 1000, 2), *range(1, 1000, 2)]


def test_room_for_a_single_token_is_used() -> None:
    assert pack([1, 3], capacity=4) == [[1, 0]]


@pytest.mark.parametrize("length", [0, CAPACITY + 1])
def test_a_length_that_no_row_takes_is_a_mistake(length: int) -> None:
    with pytest.raises(ValueError, match=f"sample 1 has {length} tokens"):
        pack([3, length], capacity=CAPACITY)
