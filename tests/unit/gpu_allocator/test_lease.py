"""The lease: every move, and every instant that is billed."""

from itertools import product

import pytest

from lehr.training.ends import RunEnd
from services.gpu_allocator.domain.lease import KEEPING, LIVE, MOVES, Lease, LeasePhase
from tests.support.gpu_allocator import T0, a_lease, a_report, at, seconds

P = LeasePhase
REPORTABLE = (P.GRANTED, P.STARTING, P.RUNNING, P.DRAINING, P.CLOSED)


def moved_by_report(lease: Lease, phase: LeasePhase) -> LeasePhase:
    return lease.renew(a_report(phase), now=at(30)).phase


@pytest.mark.parametrize(("have", "said"), list(product(sorted(LIVE), REPORTABLE)))
def test_a_report_moves_a_live_lease_only_forward(have: LeasePhase, said: LeasePhase) -> None:
    wanted = P.STARTING if said is P.GRANTED else said
    expected = wanted if wanted in MOVES[have] else have

    assert moved_by_report(a_lease(have), said) is expected


@pytest.mark.parametrize("phase", list(P))
def test_only_closed_is_terminal_and_everything_can_close(phase: LeasePhase) -> None:
    assert (P.CLOSED in MOVES[phase]) is (phase is not P.CLOSED)
    assert bool(MOVES[phase]) is (phase is not P.CLOSED)


@pytest.mark.parametrize(("have", "other_epoch"), list(product(P, (6, 7, 8))))
def test_only_a_live_lease_with_its_own_epoch_is_listened_to(
    have: LeasePhase, other_epoch: int
) -> None:
    is_heard = have in LIVE and other_epoch == 7

    assert a_lease(have).is_fenced_for(a_report(epoch=other_epoch)) is not is_heard


def test_a_draining_lease_has_given_up_its_gpus_and_a_lost_one_has_not() -> None:
    assert {P.GRANTED, P.STARTING, P.RUNNING, P.LOST} == KEEPING


def test_a_lease_cannot_be_lost_before_its_node_knew_of_it() -> None:
    with pytest.raises(ValueError, match="cannot go from GRANTED to LOST"):
        a_lease(P.GRANTED).lose("silent", now=at(60))


def test_running_begins_by_the_age_that_the_node_measured() -> None:
    report = a_report(P.RUNNING, running_age=seconds(4))

    lease = a_lease(P.STARTING).renew(report, now=at(30))

    assert (lease.running_time, lease.funded_until) == (at(26), at(3626))


def test_running_never_begins_before_the_grant() -> None:
    report = a_report(P.RUNNING, running_age=seconds(86_400))

    assert a_lease(P.STARTING).renew(report, now=at(30)).running_time == T0


def test_running_time_is_stamped_once() -> None:
    report = a_report(P.RUNNING, running_age=seconds(1))

    assert a_lease(P.RUNNING).renew(report, now=at(30)).running_time == at(10)


def test_an_end_that_is_told_minutes_late_is_stamped_by_its_age() -> None:
    report = a_report(P.CLOSED, running_age=seconds(590), end_age=seconds(540))

    lease = a_lease(P.RUNNING).renew(report, now=at(600))

    assert (lease.phase, lease.end_time, lease.close_time) == (P.CLOSED, at(60), at(600))


def test_an_end_without_an_age_is_the_last_progress_and_not_its_notice() -> None:
    lease = a_lease(P.RUNNING, progress_time=at(17))

    assert lease.renew(a_report(P.CLOSED), now=at(600)).end_time == at(17)


def test_an_end_without_any_age_is_the_last_word_before_it() -> None:
    assert a_lease(P.RUNNING).renew(a_report(P.DRAINING), now=at(600)).end_time == at(20)


def test_a_run_seen_only_at_its_end_has_both_instants() -> None:
    report = a_report(P.CLOSED, running_age=seconds(10), end_age=seconds(3))

    lease = a_lease(P.GRANTED).renew(report, now=at(30))

    assert (lease.running_time, lease.end_time) == (at(20), at(27))


def test_a_lease_that_never_computed_has_no_end_to_bill() -> None:
    lease = a_lease(P.STARTING).renew(a_report(P.CLOSED, end_age=seconds(1)), now=at(30))

    assert (lease.running_time, lease.end_time, lease.close_time) == (None, None, at(30))


def test_a_lost_lease_ends_with_its_last_word() -> None:
    lease = a_lease(P.RUNNING).lose("silent", now=at(60))

    assert (lease.phase, lease.close_reason, lease.end_time) == (P.LOST, "NODE_LOST", at(20))


def test_a_lost_lease_that_had_stalled_ends_with_its_last_progress() -> None:
    lease = a_lease(P.RUNNING, progress_time=at(13))

    assert lease.lose("silent", now=at(60)).end_time == at(13)


def test_a_lost_lease_keeps_its_reason_when_it_is_closed() -> None:
    closed = a_lease(P.LOST).close(RunEnd.PLATFORM_FAULT, "later", now=at(900))

    assert (closed.phase, closed.close_reason, closed.close_time) == (
        P.CLOSED,
        "NODE_LOST",
        at(900),
    )


def test_a_reason_nobody_knows_is_the_platforms_fault() -> None:
    lease = a_lease(P.RUNNING).renew(
        a_report(P.CLOSED, close_reason="COSMIC_RAY", close_message="bit 3"), now=at(30)
    )

    assert lease.close_reason == "PLATFORM_FAULT"
    assert "COSMIC_RAY" in lease.close_message
    assert "bit 3" in lease.close_message


def test_proof_of_life_alone_is_no_change_that_is_told() -> None:
    report = a_report(P.RUNNING, running_age=seconds(21), progress_age=seconds(1), pids=(4, 5))

    lease = a_lease(P.RUNNING).renew(report, now=at(30))

    assert (lease.version, lease.alive_time, lease.pids) == (1, at(30), (4, 5))


def test_a_commit_seen_again_through_a_slower_call_is_no_change() -> None:
    lease = a_lease(P.RUNNING, committed_time=at(18))

    assert lease.renew(a_report(committed_age=seconds(11.1)), now=at(30)).version == 1


def test_a_newer_commit_is_a_change() -> None:
    lease = a_lease(P.RUNNING, committed_time=at(18))

    renewed = lease.renew(a_report(committed_age=seconds(5)), now=at(30))

    assert (renewed.committed_time, renewed.version) == (at(25), 2)


def test_a_report_of_everything_at_once_is_one_change() -> None:
    report = a_report(
        P.CLOSED, running_age=seconds(9), end_age=seconds(1), committed_age=seconds(2)
    )

    assert a_lease(P.GRANTED).renew(report, now=at(30)).version == 2


def test_a_stop_time_only_moves_earlier_and_the_first_reason_stays() -> None:
    lease = a_lease(P.RUNNING)

    first = lease.stop(stop_time=at(50), reason=RunEnd.USER_STOPPED, now=at(60))
    later = first.stop(stop_time=at(55), reason=RunEnd.PREEMPTED, now=at(61))
    earlier = first.stop(stop_time=at(40), reason=RunEnd.PREEMPTED, now=at(61))

    assert (first.stop_time, first.stop_reason, first.version) == (at(50), "USER_STOPPED", 2)
    assert later == first
    assert (earlier.stop_time, earlier.stop_reason, earlier.version) == (
        at(40),
        "USER_STOPPED",
        3,
    )


def test_a_stop_in_the_future_is_now() -> None:
    lease = a_lease(P.RUNNING).stop(stop_time=at(999), reason=RunEnd.USER_STOPPED, now=at(60))

    assert lease.stop_time == at(60)


def test_a_closed_lease_is_not_stopped() -> None:
    closed = a_lease(P.CLOSED)

    assert closed.stop(stop_time=None, reason=RunEnd.USER_STOPPED, now=at(60)) is closed


def test_a_clock_that_steps_back_rewrites_nothing() -> None:
    lease = a_lease(P.RUNNING).renew(a_report(P.CLOSED, end_age=seconds(0)), now=at(-3600))

    assert (lease.alive_time, lease.end_time, lease.close_time) == (at(20), at(20), at(20))
