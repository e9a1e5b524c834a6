"""How long what is left pays for, to the second."""

from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lehr.errors import PlatformError
from lehr.money import cost_micros
from services.billing.domain.errors import (
    BudgetBelowCharged,
    BudgetBelowSecond,
    DurationBelowBilled,
)
from services.billing.domain.funding import (
    SECONDS_MAX,
    check_above,
    deadline,
    funded_seconds,
    funding,
)
from services.billing.domain.rating import rate
from tests.support.billing import EUR, a_hold, closed


@given(
    remaining=st.integers(1, 10**12),
    gpus=st.integers(1, 64),
    price=st.integers(1, 10**9),
    billed=st.integers(0, 10**7),
)
@settings(max_examples=500)
def test_it_is_the_most_that_is_paid_for(
    remaining: int, gpus: int, price: int, billed: int
) -> None:
    seconds = funded_seconds(remaining, gpus=gpus, micro_per_hour=price, billed_seconds=billed)

    spent = cost_micros(billed, gpus, price)
    fits = cost_micros(billed + seconds, gpus, price) - spent
    one_more = cost_micros(billed + seconds + 1, gpus, price) - spent
    assert fits <= remaining
    assert one_more > remaining or seconds == SECONDS_MAX


def test_ten_euros_at_two_eighty_an_hour() -> None:
    assert funded_seconds(10 * EUR, gpus=1, micro_per_hour=2_800_000) == 12_857


def test_nothing_left_pays_for_nothing() -> None:
    assert funded_seconds(0, gpus=1, micro_per_hour=1) == 0
    assert funded_seconds(-5, gpus=1, micro_per_hour=0) == 0


def test_a_price_of_zero_has_a_limit_all_the_same() -> None:
    assert funded_seconds(1, gpus=1, micro_per_hour=0) == SECONDS_MAX


def test_each_tier_is_told_apart_by_what_is_left_of_the_whole() -> None:
    hold = a_hold(prices={"h": 3_600_000, "b": 7_200_000}, max_cost=1_000)
    bill = rate([closed(0, 0.6)], [hold])

    found = funding(bill, hold)

    assert found == {"h": timedelta(seconds=1), "b": timedelta(seconds=0)}


@given(
    price=st.integers(1, 10**8),
    gpus=st.integers(1, 8),
    max_cost=st.integers(1, 10**7),
    first_ms=st.integers(1, 10**6),
)
@settings(max_examples=300, deadline=None)
def test_what_runs_as_long_as_is_funded_is_never_cut_and_a_second_more_would_be(
    price: int, gpus: int, max_cost: int, first_ms: int
) -> None:
    hold = a_hold(prices={"h": price}, max_cost=max_cost, gpu_count=gpus)
    free = a_hold(prices={"h": price}, gpu_count=gpus, max_cost=10**18)
    first = closed(0, first_ms / 1000, gpu_count=gpus)
    # A hold that is used up funds nothing, even where rounding would give a second away.
    assume(rate([first], [free]).total_micros < max_cost)
    left = funding(rate([first], [hold]), hold)["h"].total_seconds()
    assume(left < SECONDS_MAX)

    fits, more = (
        [first, closed(2000, 2000 + seconds, epoch=2, gpu_count=gpus)]
        for seconds in (left, left + 1)
    )

    assert rate(fits, [free]).total_micros <= max_cost < rate(more, [free]).total_micros


def test_credited_time_does_not_count_against_the_deadline() -> None:
    hold = a_hold(max_duration=timedelta(seconds=100))
    runs = [closed(0, 30, "NODE_LOST", committed=10), closed(40, 60, epoch=2)]

    assert deadline(rate(runs, [hold]), hold) == timedelta(seconds=70)


def test_a_passed_deadline_leaves_nothing() -> None:
    hold = a_hold(max_duration=timedelta(seconds=10))

    assert deadline(rate([closed(0, 30)], [hold]), hold) == timedelta()


@pytest.mark.parametrize(
    ("terms", "refusal"),
    [
        ({"max_cost": 60_000}, BudgetBelowCharged),
        ({"max_cost": 60_999}, BudgetBelowSecond),
        ({"max_cost": 61_000}, None),
        ({"max_duration": timedelta(microseconds=1)}, DurationBelowBilled),
        ({"max_duration": timedelta(seconds=60)}, DurationBelowBilled),
        ({"max_duration": timedelta(seconds=60.5)}, None),
    ],
)
def test_a_hold_allows_more_than_the_job_has_had(
    terms: dict[str, Any], refusal: type[PlatformError] | None
) -> None:
    bill = rate([closed(0, 60.4)], [a_hold()])

    with pytest.raises(refusal) if refusal else nullcontext():
        check_above("job_1", bill, a_hold(2, placed=100, **terms))


def test_a_hold_that_pays_for_one_tier_only_is_taken() -> None:
    prices = {"h": 36_000_000_000, "b": 360_000}

    check_above("job_1", rate([], []), a_hold(prices=prices, max_cost=500))


def test_what_a_resume_is_paid_for_counts_what_was_rounded_away_before() -> None:
    holds = [a_hold(max_cost=10_000), a_hold(2, max_cost=10_000, placed=100)]
    bill = rate([closed(0, 4.9)], holds)

    left = funding(bill, holds[1])["h"].total_seconds()
    second = closed(200, 200 + left, epoch=2, hold_ordinal=2)

    assert (left, rate([closed(0, 4.9), second], holds).billed_seconds) == (6, 10)


def test_without_a_limit_there_is_no_deadline() -> None:
    assert deadline(rate([], [a_hold()]), a_hold()) is None
