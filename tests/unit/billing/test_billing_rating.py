"""Which instants of a lease are billed, and what they cost."""

from datetime import timedelta
from typing import Any

import pytest

from lehr.training.ends import RunEnd
from services.billing.domain.rating import rate
from tests.support.billing import EUR, a_hold, a_lease, at, closed

ENDS_BILLED = [
    (RunEnd.COMPLETED, 100),
    (RunEnd.EARLY_STOPPED, 100),
    (RunEnd.USER_STOPPED, 100),
    (RunEnd.BUDGET_EXHAUSTED, 100),
    (RunEnd.DEADLINE_REACHED, 100),
    (RunEnd.OUT_OF_MEMORY, 100),
    (RunEnd.USER_ERROR, 100),
    (RunEnd.PREEMPTED, 60),
    (RunEnd.NODE_LOST, 60),
    (RunEnd.PLATFORM_FAULT, 60),
    (RunEnd.NO_CAPACITY, 60),
    ("SOMETHING_NEW", 60),
    ("", 60),
]


@pytest.mark.parametrize(("reason", "billed_seconds"), ENDS_BILLED)
def test_an_end_that_is_the_platforms_is_billed_up_to_the_newest_checkpoint(
    reason: str, billed_seconds: int
) -> None:
    bill = rate([closed(0, 100, reason, committed=60)], [a_hold()])

    assert bill.billed_seconds == billed_seconds
    assert bill.credited == timedelta(seconds=100 - billed_seconds)


def test_every_end_is_in_the_table() -> None:
    assert {end for end, _ in ENDS_BILLED} >= set(RunEnd)


def test_a_platform_fault_before_any_checkpoint_is_free() -> None:
    bill = rate([closed(0, 100, RunEnd.NODE_LOST)], [a_hold()])

    assert (bill.lines, bill.total_micros) == ((), 0)
    assert bill.credited == timedelta(seconds=100)


def test_a_checkpoint_of_after_the_end_credits_nothing_and_bills_nothing_more() -> None:
    bill = rate([closed(0, 100, RunEnd.NODE_LOST, committed=130)], [a_hold()])

    assert (bill.billed_seconds, bill.credited) == (100, timedelta())


@pytest.mark.parametrize("phase", ["GRANTED", "STARTING"])
def test_what_never_ran_costs_nothing(phase: str) -> None:
    bill = rate([a_lease(None, phase=phase, alive=500)], [a_hold()])

    assert (bill.lines, bill.credited) == ((), timedelta())


@pytest.mark.parametrize(
    ("limits", "billed_seconds"),
    [
        ({"alive": 50}, 50),
        ({"alive": None}, 0),
        ({"alive": 50, "stop": 40}, 40),
        ({"alive": 50, "funded": 30}, 30),
        ({"alive": 50, "end": 45}, 45),
        ({"alive": 50, "end": 45, "stop": 44.9}, 44),
        ({"alive": 50, "stop": -5}, 0),
    ],
)
def test_a_running_lease_counts_to_the_earliest_limit(
    limits: dict[str, Any], billed_seconds: int
) -> None:
    assert rate([a_lease(0, **limits)], [a_hold()]).billed_seconds == billed_seconds


def test_draining_is_free() -> None:
    lease = a_lease(0, 45, phase="DRAINING", alive=300)

    assert rate([lease], [a_hold()]).billed_seconds == 45


def test_a_lost_lease_counts_to_its_last_word_at_most() -> None:
    lease = a_lease(0, 36, phase="LOST", alive=30, committed=36, close_reason="NODE_LOST")

    assert rate([lease], [a_hold()]).billed_seconds == 30


def test_what_a_node_tells_late_may_raise_the_bill_to_the_last_proof_of_life() -> None:
    lost = a_lease(0, 30, phase="LOST", alive=30, committed=30, close_reason="NODE_LOST")
    told_late = closed(0, 36, "NODE_LOST", alive=600, committed=36)

    assert rate([lost], [a_hold()]).billed_seconds == 30
    assert rate([told_late], [a_hold()]).billed_seconds == 36


def test_seconds_are_rounded_down_once_over_all_runs() -> None:
    runs = [closed(0, 10.7), closed(20, 30.7, epoch=2), closed(40, 50.7, epoch=3)]

    assert rate(runs, [a_hold()]).billed_seconds == 32


def test_a_job_resumed_many_times_is_rounded_once_a_price() -> None:
    holds = [a_hold(ordinal, placed=ordinal) for ordinal in range(1, 11)]
    runs = [
        closed(20 * one, 20 * one + 0.9, epoch=one, hold_ordinal=one, grant_time=at(one))
        for one in range(1, 11)
    ]

    bill = rate(runs, holds)

    assert (bill.billed_seconds, bill.total_micros) == (9, 9_000)


def test_times_of_other_prices_are_rounded_each() -> None:
    holds = [a_hold(), a_hold(2, prices={"h": 7_200_000}, placed=10)]
    runs = [closed(0, 1.6), closed(20, 21.6, epoch=2, hold_ordinal=2)]

    assert [line.billed_seconds for line in rate(runs, holds).lines] == [1, 1]


def test_a_later_and_shorter_time_limit_takes_nothing_back() -> None:
    limits = [timedelta(hours=1), timedelta(microseconds=1), timedelta(seconds=90)]
    holds = [a_hold(n, max_duration=limit, placed=100 * n) for n, limit in enumerate(limits, 1)]
    runs = [closed(0, 60), closed(400, 460, epoch=2, hold_ordinal=3)]
    beyond = closed(250, 280, epoch=2, hold_ordinal=2)

    assert rate(runs[:1], holds[:2]).billed_seconds == 60
    assert [line.billed_seconds for line in rate([runs[0], beyond], holds[:2]).lines] == [60]
    assert [line.billed_seconds for line in rate(runs, holds).lines] == [60, 30]


def test_three_minutes_at_one_eighty_cost_nine_cents() -> None:
    bill = rate([closed(0, 180)], [a_hold(prices={"h": 1_800_000})])

    assert (bill.total_micros, bill.billed_seconds, len(bill.lines)) == (90_000, 180, 1)


def test_each_hold_has_its_own_prices_and_line() -> None:
    first = a_hold(prices={"h": 960_000})
    second = a_hold(2, prices={"b": 3_840_000}, placed=11_000)
    runs = [
        closed(0, 10_800),
        closed(12_000, 22_800, epoch=2, tier="b", hold_ordinal=2, grant_time=at(11_500)),
    ]

    bill = rate(runs, [first, second])

    assert [line.amount_micros for line in bill.lines] == [2_880_000, 11_520_000]
    assert bill.total_micros == 14_400_000


def test_all_gpus_of_a_lease_are_billed() -> None:
    bill = rate([closed(0, 100, gpu_count=8)], [a_hold(gpu_count=8)])

    assert bill.total_micros == 800_000


def test_an_instant_of_two_leases_is_the_newer_ones() -> None:
    cheap_and_dear = a_hold(prices={"h": 3_600_000, "b": 7_200_000})
    runs = [closed(0, 100), closed(40, 70, epoch=2, tier="b")]

    bill = rate(runs, [cheap_and_dear])

    seconds = {line.key.tier: line.billed_seconds for line in bill.lines}
    assert seconds == {"h": 70, "b": 30}


def test_no_more_is_charged_than_authorised() -> None:
    bill = rate([closed(0, 100)], [a_hold(max_cost=99_999)])

    assert (bill.total_micros, bill.billed_seconds) == (99_999, 100)


def test_a_later_authorisation_does_not_bring_back_what_was_cut_before() -> None:
    holds = [a_hold(max_cost=50_000), a_hold(2, max_cost=200_000, placed=150)]
    runs = [closed(0, 100), closed(200, 250, epoch=2, hold_ordinal=2)]

    bill = rate(runs, holds)

    assert [line.amount_micros for line in bill.lines] == [50_000, 50_000]


def test_a_later_and_lower_authorisation_counts_for_everything() -> None:
    holds = [a_hold(max_cost=200_000), a_hold(2, max_cost=120_000, placed=150)]
    runs = [closed(0, 100), closed(200, 250, epoch=2, hold_ordinal=2)]

    assert rate(runs, holds).total_micros == 120_000


def test_no_more_time_is_billed_than_was_allowed() -> None:
    bill = rate([closed(0, 100)], [a_hold(max_duration=timedelta(seconds=80.5))])

    assert bill.billed_seconds == 80


@pytest.mark.parametrize("fields", [{"hold_ordinal": 0}, {"tier": "unknown"}])
def test_what_has_no_locked_price_is_never_charged(fields: dict[str, Any]) -> None:
    assert rate([closed(0, 100, **fields)], [a_hold()]).lines == ()


def test_thirty_hours_are_billed_in_full() -> None:
    bill = rate([a_lease(0, alive=30 * 3600)], [a_hold(prices={"h": EUR})])

    assert bill.seconds_at(tier="h", gpu_count=1, micro_per_hour=EUR) == 108_000
    assert bill.total_micros == 30 * EUR
