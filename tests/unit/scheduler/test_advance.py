"""What a version of a lease means for its run and job."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.training.ends import RunEnd
from services.scheduler.domain.advance import advance
from services.scheduler.domain.job import JobState
from services.scheduler.domain.retry import RetryPolicy
from services.scheduler.domain.run import LeasePhase
from tests.support.scheduler import NOON, SECOND, a_lease, a_live_job, a_run

S, P = JobState, LeasePhase
RETRY = RetryPolicy()
LATER = NOON + 60 * SECOND


def closed(reason: str, **fields: object):  # type: ignore[no-untyped-def]
    return a_lease(P.CLOSED, close_reason=reason, **fields)


def test_a_lease_that_computes_makes_the_job_running() -> None:
    lease = a_lease(P.RUNNING, running_time=NOON)

    decided = advance(a_live_job(S.STARTING), a_run(), lease, retry=RETRY, now=LATER)

    assert decided is not None
    assert decided.job is not None
    assert (decided.job.state, decided.job.start_time) == (S.RUNNING, NOON)
    assert decided.run.lease_version == 2


@pytest.mark.parametrize("version", [0, 1])
def test_an_older_version_says_nothing(version: int) -> None:
    lease = closed("COMPLETED", version=version)

    assert advance(a_live_job(), a_run(), lease, retry=RETRY, now=LATER) is None


def test_nothing_revives_a_run_that_has_ended() -> None:
    run = a_run(end=RunEnd.USER_STOPPED, finish_time=NOON)
    lease = a_lease(P.RUNNING, running_time=NOON, version=9)

    assert advance(a_live_job(S.STOPPED), run, lease, retry=RETRY, now=LATER) is None


def test_a_late_start_does_not_revive_a_job_that_is_stopping() -> None:
    lease = a_lease(P.RUNNING, running_time=NOON)

    decided = advance(a_live_job(S.STOPPING), a_run(), lease, retry=RETRY, now=LATER)

    assert decided is not None
    assert decided.job is None


def test_an_end_that_overtakes_the_start_ends_the_job() -> None:
    lease = closed("COMPLETED", running_time=NOON, version=5)

    decided = advance(a_live_job(S.STARTING), a_run(), lease, retry=RETRY, now=LATER)

    assert decided is not None
    assert decided.job is not None
    assert (decided.job.state, decided.job.start_time) == (S.SUCCEEDED, NOON)
    assert decided.run.end is RunEnd.COMPLETED


def test_a_lost_lease_ends_the_run_before_its_gpus_are_free() -> None:
    decided = advance(a_live_job(), a_run(), a_lease(P.LOST), retry=RETRY, now=LATER)

    assert decided is not None
    assert decided.job is not None
    assert (decided.run.end, decided.job.state) == (RunEnd.NODE_LOST, S.QUEUED)


def test_a_reason_that_nobody_knows_counts_as_the_platforms() -> None:
    decided = advance(a_live_job(), a_run(), closed("GREMLINS"), retry=RETRY, now=LATER)

    assert decided is not None
    assert decided.run.end is RunEnd.PLATFORM_FAULT


def test_the_fifth_fault_is_tried_again_and_the_sixth_fails_the_job() -> None:
    fifth = advance(
        a_live_job(fault_count=4), a_run(), closed("PLATFORM_FAULT"), retry=RETRY, now=LATER
    )
    sixth = advance(
        a_live_job(fault_count=5), a_run(), closed("PLATFORM_FAULT"), retry=RETRY, now=LATER
    )

    assert fifth is not None
    assert fifth.job is not None
    assert sixth is not None
    assert sixth.job is not None
    assert (fifth.job.state, fifth.job.fault_count) == (S.QUEUED, 5)
    assert (sixth.job.state, sixth.job.end_reason) == (S.FAILED, RunEnd.PLATFORM_FAULT)
    assert "given up after 6 faults" in sixth.job.state_message


def test_a_preempted_job_is_queued_again_at_once_and_without_a_fault() -> None:
    decided = advance(
        a_live_job(fault_count=5), a_run(), closed("PREEMPTED"), retry=RETRY, now=LATER
    )

    assert decided is not None
    assert decided.job is not None
    assert (decided.job.state, decided.job.fault_count) == (S.QUEUED, 5)
    assert decided.job.not_before == LATER


def test_a_stopped_job_says_that_it_was_stopped_whatever_killed_the_run() -> None:
    lease = closed("NODE_LOST", close_message="no sync for 30 s")

    decided = advance(a_live_job(S.STOPPING), a_run(), lease, retry=RETRY, now=LATER)

    assert decided is not None
    assert decided.job is not None
    assert (decided.job.state, decided.job.end_reason) == (S.STOPPED, RunEnd.USER_STOPPED)
    assert "no sync for 30 s" in decided.job.state_message


def test_a_message_that_cannot_be_stored_is_spelled_out() -> None:
    lease = closed("USER_ERROR", close_message="bad\0name \ud83d")

    decided = advance(a_live_job(), a_run(), lease, retry=RETRY, now=LATER)

    assert decided is not None
    assert decided.run.end_message == r"bad\x00name \ud83d"


@pytest.mark.parametrize(
    ("fault", "seconds"), [(1, 5), (2, 10), (3, 20), (4, 40), (7, 300), (10_000, 300)]
)
def test_the_wait_doubles_up_to_five_minutes(fault: int, seconds: int) -> None:
    assert RETRY.wait_after(fault) == timedelta(seconds=seconds)


PHASES = st.sampled_from([P.GRANTED, P.STARTING, P.RUNNING, P.DRAINING, P.LOST, P.CLOSED])
LEASES = st.builds(
    a_lease,
    PHASES,
    version=st.integers(0, 12),
    close_reason=st.sampled_from([*RunEnd, "", "GREMLINS"]),
    running_time=st.sampled_from([None, NOON]),
)


@given(st.lists(LEASES, max_size=12), st.booleans())
def test_whatever_arrives_in_whatever_order_a_job_ends_once(leases: list, stop: bool) -> None:  # type: ignore[type-arg]
    job, run = a_live_job(S.STOPPING if stop else S.STARTING), a_run()
    ends = 0

    for lease in leases + leases[::-1]:
        decided = advance(job, run, lease, retry=RETRY, now=LATER)
        if decided is not None:
            ends += decided.run.end is not None
            assert decided.run.lease_version > run.lease_version
            run = decided.run
            job = decided.job or job

    assert ends <= 1
    assert (run.end is None) == (job.state in (S.STARTING, S.RUNNING, S.STOPPING))
