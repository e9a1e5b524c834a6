"""When a run evaluates, saves and ends: ES-01, ES-03, ES-05 and ES-07 of the requirements."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.training.ends import RunEnd
from services.trainer_runner.cadence import NON_FINITE_LIMIT, Cadence, Standing

INF, NAN = math.inf, math.nan


def a_cadence(**facts: int | None) -> Cadence:
    told = {"total_steps": 200, "eval_steps": 10, "save_steps": 10, "patience": 3, **facts}
    return Cadence(**told, evaluates=True)  # type: ignore[arg-type]


def run(losses: dict[int, float], cadence: Cadence) -> tuple[Standing, int, list[int | None]]:
    """Evaluate as scripted; return the standing, the step of the end, and Best along the way."""
    standing, bests = Standing(), []
    for step, loss in losses.items():
        standing = standing.evaluated(step, loss)
        bests.append(standing.best_step)
        if cadence.end_at(step, standing) is not None:
            return standing, step, bests
    return standing, -1, bests


@pytest.mark.parametrize(
    ("losses", "patience", "best", "end"),
    [
        ([2.0, 1.2, 1.5, 1.6, 1.7, 1.8, 1.9], 5, 20, 70),
        ([1.8, NAN, 1.7, NAN, NAN, NAN], 3, 30, 60),
        ([NAN, NAN, NAN], 3, None, 30),
        ([1.8, -INF, INF, 1.9], 3, 10, 40),
        ([2.0, 2.1, 2.2, 1.9, 2.0, 2.05, 1.8, 1.85, 1.9, 1.95, 1.0], 3, 70, 100),
        ([1.5, 1.5, 1.5, 1.5], 3, 10, 40),
        ([1.5, 1.4999999, 1.5, 1.5, 1.5], 3, 20, 50),
    ],
    ids=["ES-01", "ES-03 A", "ES-03 B", "ES-03 C", "ES-05", "ES-07 A", "ES-07 B"],
)
def test_best_and_end_of_the_scripted_losses(
    losses: list[float], patience: int, best: int | None, end: int
) -> None:
    scripted = {10 * at: loss for at, loss in enumerate(losses, start=1)}

    standing, ended, _ = run(scripted, a_cadence(patience=patience))

    assert (standing.best_step, ended) == (best, end)


def test_best_moves_only_to_a_lower_loss_while_running() -> None:
    losses = [2.0, 2.1, 2.2, 1.9, 2.0, 2.05, 1.8]

    _, _, bests = run({10 * at: loss for at, loss in enumerate(losses, 1)}, a_cadence())

    assert bests == [10, 10, 10, 40, 40, 40, 70]


def test_the_base_model_is_never_best_and_costs_no_patience() -> None:
    standing = Standing().measured(0.5).evaluated(10, 2.0)

    assert (standing.baseline_loss, standing.best_step, standing.misses) == (0.5, 10, 0)


def test_patience_switched_off_never_ends_a_run() -> None:
    standing, ended, _ = run(dict.fromkeys(range(10, 200, 10), 1.0), a_cadence(patience=None))

    assert (ended, standing.misses) == (-1, 18)


def test_a_run_whose_patience_ends_with_its_last_step_is_complete() -> None:
    standing = Standing(misses=3, evaluated_step=200)

    assert a_cadence().end_at(200, standing) == RunEnd.COMPLETED


def test_a_loss_that_is_never_finite_ends_the_run_but_a_passing_one_does_not() -> None:
    cadence, standing = a_cadence(), Standing()

    for loss in [NAN] * (NON_FINITE_LIMIT - 1) + [1.0] + [INF] * (NON_FINITE_LIMIT - 1):
        standing = standing.trained(loss)

    assert cadence.end_at(15, standing) is None
    assert cadence.end_at(16, standing.trained(-INF)) == RunEnd.USER_ERROR


def test_the_last_step_is_evaluated_even_off_the_beat() -> None:
    cadence = a_cadence(total_steps=205)

    assert [cadence.is_evaluation_due(step, Standing()) for step in (0, 9, 10, 204, 205)] == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_what_was_evaluated_is_not_evaluated_again() -> None:
    assert not a_cadence().is_evaluation_due(10, Standing(evaluated_step=10))


def test_a_new_low_is_saved_between_ordinary_checkpoints() -> None:
    cadence, standing = a_cadence(save_steps=100), Standing(best_step=30, evaluated_step=30)

    marks = cadence.marks_at(30, standing, None)

    assert (marks.is_ordinary, marks.is_best, marks.is_final) == (False, True, False)
    assert not cadence.marks_at(40, standing, None)


def test_a_stop_leaves_an_ordinary_checkpoint_and_an_early_stop_a_final_one() -> None:
    cadence = a_cadence(save_steps=100)

    stopped = cadence.marks_at(7, Standing(), RunEnd.USER_STOPPED)
    early = cadence.marks_at(70, Standing(best_step=40), RunEnd.EARLY_STOPPED)

    assert (stopped.is_ordinary, stopped.is_final) == (True, False)
    assert (early.is_ordinary, early.is_best, early.is_final) == (False, False, True)


def test_standing_survives_strict_json_with_numbers_that_are_not_finite() -> None:
    standing = Standing().measured(INF).evaluated(10, 1.25).evaluated(20, -INF)

    told = standing.as_json()

    assert (told["baseline_loss"], told["eval_loss"]) == ("Infinity", "-Infinity")
    assert Standing.from_json(told) == standing


@given(
    st.lists(st.floats() | st.sampled_from([1.0, 1.0, 2.0]), max_size=40),
    st.integers(min_value=0, max_value=40),
)
def test_a_standing_read_back_goes_on_as_if_nothing_had_happened(
    losses: list[float], cut: int
) -> None:
    straight = Standing()
    for step, loss in enumerate(losses, start=1):
        straight = straight.evaluated(step, loss)

    resumed = Standing()
    for step, loss in enumerate(losses, start=1):
        resumed = resumed.evaluated(step, loss)
        resumed = Standing.from_json(resumed.as_json()) if step == cut else resumed

    assert repr(resumed) == repr(straight)


@given(st.lists(st.floats(), max_size=40), st.sampled_from([3, 4, 5]))
def test_best_is_the_first_lowest_finite_loss_and_patience_is_counted_from_it(
    losses: list[float], patience: int
) -> None:
    scripted = dict(enumerate(losses, start=1))

    standing, ended, _ = run(scripted, a_cadence(patience=patience, total_steps=1000))

    seen = losses[:ended] if ended > 0 else losses
    finite = [loss for loss in seen if math.isfinite(loss)]
    best = seen.index(min(finite)) + 1 if finite else None
    assert standing.best_step == best
    assert standing.misses == len(seen) - (best or 0)
    assert ended == -1 or standing.misses == patience


@given(
    st.integers(min_value=1, max_value=60),
    st.integers(min_value=1, max_value=20),
    st.integers(min_value=0, max_value=60),
)
def test_what_is_left_is_what_will_come(total: int, every: int, step: int) -> None:
    cadence = a_cadence(total_steps=total, eval_steps=every, save_steps=every)
    later = range(min(step, total) + 1, total + 1)

    assert cadence.evaluations_left(step) == sum(
        cadence.is_evaluation_due(at, Standing()) for at in later
    )
