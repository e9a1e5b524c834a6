"""Which hold applies, what a repeated one does, and when its money flows back."""

from dataclasses import replace
from datetime import timedelta

import pytest

from services.billing.domain.errors import HoldDiffers, HoldSuperseded
from services.billing.domain.holds import Hold, Placement, Rest, Terms, decide, hold_of, may_settle
from tests.support.billing import EUR, a_hold, at

ONE, TWO = a_hold(1), a_hold(2, placed=50)
SAME = ONE.terms
OTHER = replace(SAME, max_cost_micros=7 * EUR)
MINUTES = timedelta(minutes=10)


@pytest.mark.parametrize(
    ("known", "ordinal", "terms", "open_ordinal", "is_used", "placement"),
    [
        ([], 1, SAME, None, False, Placement.ADD),
        ([ONE], 2, SAME, 1, True, Placement.ADD),
        ([ONE], 1, SAME, 1, False, Placement.KEEP),
        ([ONE], 1, SAME, 1, True, Placement.KEEP),
        ([ONE, TWO], 1, SAME, 2, True, Placement.KEEP),
        ([ONE, TWO], 1, SAME, None, True, Placement.KEEP),
        ([ONE], 1, SAME, None, False, Placement.REOPEN),
        ([ONE], 1, SAME, None, True, Placement.REOPEN),
        ([ONE], 1, OTHER, 1, False, Placement.REPLACE),
        ([ONE], 1, OTHER, None, False, Placement.REPLACE),
    ],
)
def test_a_request_to_hold_is_decided_by_what_is_there(
    known: list[Hold],
    ordinal: int,
    terms: Terms,
    open_ordinal: int | None,
    is_used: bool,
    placement: Placement,
) -> None:
    found = decide(known, ordinal, terms, open_ordinal=open_ordinal, is_used=is_used)

    assert found is placement


def test_what_runs_were_launched_under_keeps_its_terms() -> None:
    with pytest.raises(HoldDiffers):
        decide([ONE], 1, OTHER, open_ordinal=1, is_used=True)


def test_an_earlier_hold_keeps_its_terms() -> None:
    with pytest.raises(HoldDiffers):
        decide([ONE, TWO], 1, OTHER, open_ordinal=2, is_used=False)


def test_a_hold_behind_the_newest_cannot_be_placed_any_more() -> None:
    with pytest.raises(HoldSuperseded):
        decide([TWO], 1, SAME, open_ordinal=2, is_used=False)


@pytest.mark.parametrize(
    ("granted", "known", "ordinal"),
    [
        (0, [ONE, TWO], 1),
        (50, [ONE, TWO], 2),
        (60, [TWO, ONE], 2),
        (-200, [ONE, TWO], 1),
        (0, [], 0),
    ],
)
def test_the_newest_hold_placed_before_the_grant_applies(
    granted: float, known: list[Hold], ordinal: int
) -> None:
    assert hold_of(at(granted), known) == ordinal


@pytest.mark.parametrize(
    ("rest", "granted", "now", "may"),
    [
        # At rest since after the last lease was granted.
        (Rest(version=3, is_resting=True, change_time=at(50)), 50, 60, True),
        # The same although the clock was put back after the money was set aside.
        (Rest(version=3, is_resting=True, change_time=at(-140)), -150, 60, True),
        # At rest since after the money was set aside, and nothing ran.
        (Rest(version=3, is_resting=True, change_time=at(-100)), None, 0, True),
        # The rest of the run before: the job is being resumed, or that was given up.
        (Rest(version=3, is_resting=True, change_time=at(-101)), None, 0, False),
        (Rest(version=3, is_resting=True, change_time=at(-101)), None, 600, True),
        (Rest(version=3, is_resting=True, change_time=at(49)), 50, 9_999, False),
        # Nobody ever spoke of the job: it is being launched, or that was given up.
        (Rest(), None, 499, False),
        (Rest(), None, 500, True),
        (Rest(), 50, 9_999, False),
        # It lives, however long it waits.
        (Rest(version=2, is_resting=False, change_time=at(0)), None, 9_999, False),
        (Rest(version=2, is_resting=False, change_time=at(60)), 50, 9_999, False),
    ],
)
def test_money_flows_back_when_the_job_rests_or_was_given_up(
    rest: Rest, granted: float | None, now: float, may: bool
) -> None:
    found = may_settle(
        ONE,
        rest,
        last_grant_time=None if granted is None else at(granted),
        now=at(now),
        give_up_after=MINUTES,
    )

    assert found is may


def test_without_a_time_nothing_is_judged_as_given_up() -> None:
    assert not may_settle(ONE, Rest(), last_grant_time=None, now=at(9_999), give_up_after=None)
