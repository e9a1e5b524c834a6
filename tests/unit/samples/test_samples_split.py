"""Holding rows out: DS-07 and DS-09 of the requirements."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.errors import InvalidArgument
from lehr.samples.split import Keys, Split, shuffled, split_rows

DUPLICATES = ["q0", "q1", "q0", "q2", "q3", "q0", "q4", "q5", "q0", "q6"]


def keys_of(rows: Iterable[object]) -> Keys:
    """Return 16 bytes a row; they end in zeros, which must not be lost."""
    raw = b"".join(str(row).encode().ljust(16, b"\0") for row in rows)
    return np.frombuffer(raw, dtype=np.uint8).reshape(-1, 16)


def split(rows: Iterable[object], *, share: float, seed: int) -> Split:
    return split_rows(keys_of(rows), share=share, seed=seed)


@pytest.mark.parametrize(("share", "held_out"), [(0.01, 1), (0.1, 1), (0.5, 3), (0.99, 4)], ids=str)
def test_five_rows_leave_at_least_one_on_each_side(share: float, held_out: int) -> None:
    found = split(range(5), share=share, seed=42)

    assert len(found.validation) == held_out
    assert sorted([*found.train, *found.validation]) == [0, 1, 2, 3, 4]


def test_one_row_cannot_be_split() -> None:
    with pytest.raises(InvalidArgument, match="at least two different rows") as refused:
        split(["only"], share=0.1, seed=42)

    assert refused.value.fields[0].field == "data.validation_split"


def test_one_row_without_a_split_is_trained() -> None:
    assert split(["only"], share=0.0, seed=42).train.tolist() == [0]


@pytest.mark.parametrize("seed", range(10))
def test_copies_of_a_row_stay_on_one_side(seed: int) -> None:
    found = split(DUPLICATES, share=0.2, seed=seed)

    train = {DUPLICATES[at] for at in found.train}
    assert train.isdisjoint(DUPLICATES[at] for at in found.validation)
    assert len(found.validation) == 2


def test_copies_that_fill_every_share_still_leave_both_sides_something() -> None:
    found = split(["a"] * 6 + ["b"] * 4, share=0.1, seed=1)

    assert [len(found.train), len(found.validation)] == [6, 4]


def test_another_seed_gives_another_split_and_the_same_seed_the_same() -> None:
    first, again, other = (
        split(range(100), share=0.1, seed=seed).validation.tolist() for seed in (1, 1, 2)
    )

    assert first == again
    assert first != other


def test_which_rows_are_held_out_and_the_order_of_the_others_are_the_seeds() -> None:
    found = [split(range(100), share=0.1, seed=seed) for seed in range(3)]

    assert len({frozenset(one.validation.tolist()) for one in found}) == 3
    assert all(one.train.tolist() != sorted(one.train) for one in found)
    # The first of a side are a fair sample of it, not its first rows.
    assert all(max(one.train[:20]) > 50 for one in found)


def test_the_order_of_a_seed_is_the_same_for_ever() -> None:
    # A job planned by an older version finds its rows where it left them.
    assert shuffled(8, seed=42).tolist() == [1, 5, 0, 7, 2, 4, 3, 6]


@given(
    st.lists(st.integers(min_value=0, max_value=9), min_size=2, max_size=40).filter(
        lambda keys: len(set(keys)) > 1
    ),
    st.floats(min_value=0.01, max_value=0.99),
    st.integers(min_value=0, max_value=5),
)
def test_no_row_is_lost_doubled_or_on_both_sides(keys: list[int], share: float, seed: int) -> None:
    found = split(keys, share=share, seed=seed)

    assert sorted([*found.train, *found.validation]) == list(range(len(keys)))
    assert {keys[at] for at in found.train}.isdisjoint(keys[at] for at in found.validation)
    assert len(found.train)
    assert len(found.validation)
