"""What one sync changes, and what the node is told."""

import pytest

from services.gpu_allocator.domain import sync
from services.gpu_allocator.domain.errors import IncarnationFenced
from services.gpu_allocator.domain.gpu import GpuState
from services.gpu_allocator.domain.lease import LeasePhase
from services.gpu_allocator.domain.node import Sync
from services.gpu_allocator.domain.sync import Outcome
from tests.support.gpu_allocator import (
    a_gpu,
    a_gpu_report,
    a_lease,
    a_node,
    a_report,
    a_sync,
    at,
)

P, S = LeasePhase, GpuState
UNKNOWN_EPOCH = a_gpu_report(epoch=6)


def apply(phase: LeasePhase, heard: Sync, **fields: object) -> Outcome:
    """Apply a sync to a node with one GPU and one lease on it."""
    gpu = a_gpu(S.CLEARING if phase in {P.DRAINING, P.CLOSED} else S.HELD)
    return sync.apply(a_node(), [a_lease(phase, **fields)], [gpu], heard, now=at(30))


def test_a_granted_lease_is_offered_with_its_ordinals() -> None:
    outcome = apply(P.GRANTED, a_sync(), is_offered=False)

    (told,) = outcome.desired
    assert (told.lease_id, told.epoch, told.ordinals) == ("lease_1", 7, (0,))
    assert (told.is_fenced, told.should_stop) == (False, False)
    assert outcome.leases[0].is_offered
    assert outcome.leases[0].version == 1


def test_a_stop_is_repeated_until_the_lease_is_closed() -> None:
    outcome = apply(P.RUNNING, a_sync(a_report()), stop_time=at(25), stop_reason="USER_STOPPED")

    assert outcome.desired[0].should_stop


def test_a_new_incarnation_that_does_not_know_a_run_closes_it_at_its_last_word() -> None:
    outcome = apply(P.RUNNING, a_sync(incarnation=4, sync_sequence=1))

    lease = outcome.leases[0]
    assert (lease.phase, lease.close_reason, lease.end_time) == (P.CLOSED, "NODE_LOST", at(20))
    assert outcome.gpus[0].state is S.FREE
    assert outcome.desired == ()


def test_a_new_incarnation_starts_a_lease_that_is_only_granted() -> None:
    outcome = apply(P.GRANTED, a_sync(incarnation=4, sync_sequence=1))

    assert outcome.leases[0].phase is P.GRANTED
    assert outcome.gpus[0].state is S.HELD
    assert [one.lease_id for one in outcome.desired] == ["lease_1"]


def test_a_new_incarnation_may_know_a_lease_that_still_uploads() -> None:
    heard = a_sync(a_report(P.DRAINING), incarnation=4, sync_sequence=1)

    assert apply(P.DRAINING, heard).leases[0].phase is P.DRAINING


def test_the_same_incarnation_that_leaves_out_a_run_has_not_ended_it() -> None:
    outcome = apply(P.RUNNING, a_sync())

    assert (outcome.leases[0].phase, outcome.gpus[0].state) == (P.RUNNING, S.HELD)
    assert outcome.leases[0].alive_time == at(20)


@pytest.mark.parametrize("phase", [P.LOST, P.CLOSED])
def test_a_run_whose_lease_is_gone_is_fenced_and_not_listened_to(phase: LeasePhase) -> None:
    busy = a_gpu_report(is_clear=False)

    outcome = apply(phase, a_sync(a_report(P.RUNNING), gpus=(busy,)))

    (told,) = outcome.desired
    assert (told.is_fenced, told.should_stop, told.ordinals) == (True, False, (0,))
    assert outcome.leases[0] == a_lease(phase)
    assert outcome.gpus[0].is_unproven


def test_a_lease_with_another_epoch_is_fenced() -> None:
    outcome = apply(P.RUNNING, a_sync(a_report(epoch=6)))

    assert [(one.epoch, one.is_fenced) for one in outcome.desired] == [(7, False), (6, True)]
    assert outcome.leases[0].alive_time == at(20)


def test_a_lease_that_nobody_knows_is_fenced() -> None:
    outcome = sync.apply(a_node(), [], [], a_sync(a_report(lease_id="ghost")), now=at(30))

    (told,) = outcome.desired
    assert (told.lease_id, told.lease, told.is_fenced) == ("ghost", None, True)


@pytest.mark.parametrize("phase", [P.LOST, P.CLOSED])
def test_a_node_that_says_a_gone_lease_is_closed_has_been_heard(phase: LeasePhase) -> None:
    outcome = apply(phase, a_sync(a_report(P.CLOSED)))

    assert (outcome.leases[0].phase, outcome.leases[0].close_reason) == (P.CLOSED, "NODE_LOST")
    assert (outcome.desired, outcome.gpus[0].state) == ((), S.FREE)


def test_a_lost_lease_ends_and_frees_its_gpu_once_the_node_proves_that_nothing_runs() -> None:
    outcome = apply(P.LOST, a_sync())

    assert (outcome.leases[0].phase, outcome.gpus[0].state) == (P.CLOSED, S.FREE)


def test_a_node_whose_journal_missed_an_ended_lease_must_learn_its_epoch_first() -> None:
    outcome = apply(P.CLOSED, a_sync(gpus=(UNKNOWN_EPOCH,)))

    (told,) = outcome.desired
    assert (told.lease_id, told.epoch, told.is_fenced, told.ordinals) == ("lease_1", 7, True, (0,))
    assert outcome.gpus[0].state is S.CLEARING


def test_draining_frees_the_gpu_while_the_lease_stays_open() -> None:
    heard = a_sync(a_report(P.DRAINING))
    outcome = sync.apply(a_node(), [a_lease(P.RUNNING)], [a_gpu(S.HELD)], heard, now=at(30))

    (told,) = outcome.desired
    assert (outcome.leases[0].phase, outcome.gpus[0].state) == (P.DRAINING, S.FREE)
    assert (told.is_fenced, told.ordinals) == (False, ())


def test_a_draining_node_gives_back_what_it_has_not_begun() -> None:
    outcome = apply(P.GRANTED, a_sync(is_draining=True), is_offered=False)

    assert (outcome.leases[0].phase, outcome.gpus[0].state) == (P.CLOSED, S.FREE)
    assert outcome.desired == ()


def test_a_repeated_sync_changes_nothing_and_is_answered_the_same() -> None:
    heard = a_sync(a_report(P.CLOSED), a_report(P.RUNNING, lease_id="ghost"))
    first = sync.apply(a_node(), [a_lease(P.RUNNING)], [a_gpu(S.HELD)], heard, now=at(30))

    again = sync.repeat(first.node, first.leases, first.gpus, heard)

    assert first.node.is_repeat(heard)
    assert again == first


def test_an_older_incarnation_is_refused() -> None:
    with pytest.raises(IncarnationFenced, match="incarnation 3"):
        a_node().is_repeat(a_sync(incarnation=2, sync_sequence=99))


def test_another_machine_under_the_same_name_and_incarnation_is_refused() -> None:
    with pytest.raises(IncarnationFenced, match="another machine"):
        a_node().is_repeat(a_sync(boot_id="boot-2"))


def test_an_older_sync_that_arrives_late_is_a_repetition() -> None:
    assert a_node().is_repeat(a_sync(sync_sequence=9))
    assert not a_node().is_repeat(a_sync(sync_sequence=1, incarnation=4))
