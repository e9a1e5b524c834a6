"""The states of a job: every pair, every end from every live state."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest

from lehr.training.ends import RunEnd
from services.scheduler.domain.errors import JobStateForbids
from services.scheduler.domain.job import (
    ENDS,
    LIVE,
    MOVES,
    REPEATABLE_ENDS,
    RESTING,
    Authorization,
    JobState,
)
from services.scheduler.domain.run import state_after
from tests.support.scheduler import EUROS, HOUR, NOON, SECOND, a_job, a_live_job

S = JobState
LATER = NOON + 90 * SECOND
PAIRS = list(product(S, S))


@pytest.mark.parametrize(("have", "want"), [pair for pair in PAIRS if pair[1] in MOVES[pair[0]]])
def test_a_legal_move_makes_the_next_version(have: S, want: S) -> None:
    moved = a_job(state=have)._move(want, now=LATER)

    assert (moved.state, moved.version, moved.update_time) == (want, 2, LATER)


@pytest.mark.parametrize(
    ("have", "want"), [pair for pair in PAIRS if pair[1] not in MOVES[pair[0]]]
)
def test_any_other_move_is_refused_and_names_the_state(have: S, want: S) -> None:
    with pytest.raises(JobStateForbids, match=f"is {have}, so it cannot become {want}"):
        a_job(state=have)._move(want, now=LATER)


def test_every_pair_of_states_was_walked() -> None:
    assert len(PAIRS) == 49
    assert set(MOVES) == set(S)


@pytest.mark.parametrize(
    ("end", "stop_asked", "left"), list(product(RunEnd, [False, True], [0, 1]))
)
def test_every_end_leads_to_a_state_that_a_run_may_end_in(
    end: RunEnd, stop_asked: bool, left: int
) -> None:
    assert state_after(end, stop_asked=stop_asked, attempts_left=left) in ENDS


@pytest.mark.parametrize(("end", "state", "left"), list(product(RunEnd, sorted(LIVE), [0, 1])))
def test_every_end_from_every_live_state_is_a_legal_move(end: RunEnd, state: S, left: int) -> None:
    after = state_after(end, stop_asked=state is S.STOPPING, attempts_left=left)

    assert after in MOVES[state]


@pytest.mark.parametrize("end", [RunEnd.COMPLETED, RunEnd.EARLY_STOPPED])
def test_a_run_that_had_finished_succeeds_even_if_a_stop_came(end: RunEnd) -> None:
    assert state_after(end, stop_asked=True, attempts_left=0) is S.SUCCEEDED


@pytest.mark.parametrize("end", sorted(set(RunEnd) - {RunEnd.COMPLETED, RunEnd.EARLY_STOPPED}))
def test_after_a_stop_however_the_run_came_down_the_job_is_stopped(end: RunEnd) -> None:
    assert state_after(end, stop_asked=True, attempts_left=5) is S.STOPPED


@pytest.mark.parametrize("end", [RunEnd.OUT_OF_MEMORY, RunEnd.USER_ERROR])
def test_what_would_fail_in_the_same_way_is_not_tried_again(end: RunEnd) -> None:
    assert state_after(end, stop_asked=False, attempts_left=5) is S.FAILED


def test_a_stop_in_the_queue_ends_the_job_and_gives_its_next_lease_key_up() -> None:
    stopped = a_job(run_ordinal=2).stop(now=LATER)

    assert (stopped.state, stopped.end_reason) == (S.STOPPED, RunEnd.USER_STOPPED)
    assert (stopped.stop_time, stopped.finish_time) == (LATER, LATER)
    assert stopped.run_ordinal == 3


@pytest.mark.parametrize("state", [S.STARTING, S.RUNNING])
def test_a_stop_of_a_live_job_fixes_the_last_billable_instant(state: S) -> None:
    stopping = a_live_job(state).stop(now=LATER)

    assert (stopping.state, stopping.stop_time, stopping.run_ordinal) == (S.STOPPING, LATER, 1)


@pytest.mark.parametrize("state", [S.STOPPING, *sorted(RESTING)])
def test_a_second_stop_changes_nothing(state: S) -> None:
    job = a_live_job(state)

    assert job.stop(now=LATER) is job


@pytest.mark.parametrize(("state", "end"), list(product(S, RunEnd)))
def test_stopped_and_failed_jobs_are_resumed_however_they_ended(state: S, end: RunEnd) -> None:
    job = a_live_job(state, end_reason=end)

    outcome = "resumed"
    try:
        job.check_resumable()
    except JobStateForbids as refusal:
        outcome = refusal.facts["have"]

    assert outcome == ("resumed" if state in (S.STOPPED, S.FAILED) else state)


@pytest.mark.parametrize("end", RunEnd)
def test_who_resumes_what_may_fail_again_is_told_so(end: RunEnd) -> None:
    allowed = Authorization(max_cost=EUROS, max_duration=HOUR)

    queued = a_live_job(S.FAILED, end_reason=end).resume(authorization=allowed, now=LATER)

    assert (f"ended in {end}" in queued.state_message) is (end in REPEATABLE_ENDS)
    assert ("create a new job" in queued.state_message) is (end in REPEATABLE_ENDS)


def test_a_resumed_job_joins_the_end_of_the_queue_with_a_clean_sheet() -> None:
    allowed = Authorization(max_cost=EUROS.times(2), max_duration=2 * HOUR)
    job = a_live_job(S.STOPPED, end_reason=RunEnd.USER_STOPPED, fault_count=4, stop_time=NOON)

    queued = job.resume(authorization=allowed, now=LATER)

    assert (queued.state, queued.end_reason, queued.stop_time) == (S.QUEUED, None, None)
    assert (queued.queue_time, queued.fault_count, queued.hold_ordinal) == (LATER, 0, 2)
    assert queued.authorization == allowed


def test_a_fault_leaves_the_place_in_the_queue_as_it_was() -> None:
    queued = a_live_job().requeue(fault_count=1, wait=timedelta(seconds=5), message="", now=LATER)

    assert queued.queue_time == NOON
    assert queued.not_before == queued.wait_time == LATER + 5 * SECOND
