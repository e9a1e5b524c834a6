"""When a run must stop although nobody could tell the node so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.training.ends import RunEnd
from services.trainer_runner.agent.limits import (
    Force,
    Limit,
    force_due,
    is_stalled,
    limit_reached,
    reserve_seconds,
)

seconds = st.floats(min_value=0, max_value=1e7)


@pytest.mark.parametrize(
    ("asked", "force"),
    [
        (0, Force.ASK),
        (119, Force.ASK),
        (120, Force.TERMINATE),
        (130, Force.KILL),
        (999, Force.KILL),
    ],
)
def test_a_computing_trainer_gets_its_grace(asked: float, force: Force) -> None:
    assert force_due(asked, has_begun=True, grace=120, kill_after=10) is force


def test_a_trainer_that_has_not_begun_is_killed_at_once() -> None:
    assert force_due(0, has_begun=False, grace=120, kill_after=10) is Force.KILL


def test_without_limits_nothing_is_reached() -> None:
    assert limit_reached(1e9, funded=None, deadline=None, reserve=0) is None


@pytest.mark.parametrize(
    ("funded", "deadline", "end"),
    [
        (100.0, None, RunEnd.BUDGET_EXHAUSTED),
        (None, 100.0, RunEnd.DEADLINE_REACHED),
        (100.0, 200.0, RunEnd.BUDGET_EXHAUSTED),
        (200.0, 100.0, RunEnd.DEADLINE_REACHED),
        (100.0, 100.0, RunEnd.BUDGET_EXHAUSTED),
    ],
)
def test_the_nearer_limit_counts_less_what_saving_takes(
    funded: float | None, deadline: float | None, end: RunEnd
) -> None:
    assert limit_reached(89.9, funded=funded, deadline=deadline, reserve=10) is None
    reached = limit_reached(90.0, funded=funded, deadline=deadline, reserve=10)
    assert reached == Limit(seconds=100.0, end=end)


@given(funded=seconds, reserve=seconds)
def test_a_run_may_always_use_half_of_what_is_paid_for(funded: float, reserve: float) -> None:
    used = funded * 0.499

    reached = limit_reached(used, funded=funded, deadline=None, reserve=reserve)

    assert (reached is not None) == (funded == 0 or used >= funded - min(reserve, funded / 2))
    assert limit_reached(funded, funded=funded, deadline=None, reserve=reserve) is not None


@given(step=seconds, save=seconds)
def test_the_reserve_covers_a_step_and_a_save(step: float, save: float) -> None:
    assert reserve_seconds(step_seconds=step, save_seconds=save) > step + save


def test_a_trainer_with_long_steps_is_not_taken_for_hanging() -> None:
    assert is_stalled(241, longest_step=1, timeout=240)
    assert not is_stalled(999, longest_step=100, timeout=240)
    assert is_stalled(1001, longest_step=100, timeout=240)
