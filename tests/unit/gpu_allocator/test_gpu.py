"""A GPU is granted again only after proof of death."""

from itertools import product

import pytest

from services.gpu_allocator.domain.errors import GpuNotQuarantined
from services.gpu_allocator.domain.gpu import MOVES, GpuState, first_seen
from services.gpu_allocator.domain.lease import LeasePhase
from tests.support.gpu_allocator import a_gpu, a_gpu_report, a_lease

S, P = GpuState, LeasePhase


@pytest.mark.parametrize("phase", [P.GRANTED, P.STARTING, P.RUNNING, P.LOST])
def test_a_lease_that_keeps_its_gpus_keeps_them_held(phase: LeasePhase) -> None:
    held = a_gpu(S.HELD)

    assert held.after(a_lease(phase)).seen(a_gpu_report(), is_new_boot=True) == held


@pytest.mark.parametrize("phase", [P.DRAINING, P.CLOSED])
def test_the_gpu_of_a_lease_that_is_over_waits_for_proof(phase: LeasePhase) -> None:
    cleared = a_gpu(S.HELD).after(a_lease(phase))

    assert (cleared.state, cleared.lease_id) == (S.CLEARING, "lease_1")


def test_a_lease_no_node_was_told_of_leaves_nothing_to_prove() -> None:
    freed = a_gpu(S.HELD).after(a_lease(P.CLOSED, is_offered=False))

    assert (freed.state, freed.lease_id, freed.epoch) == (S.FREE, None, 7)


@pytest.mark.parametrize(
    ("is_clear", "epoch", "is_new_boot"), list(product([True, False], [6, 7, 8], [True, False]))
)
def test_proof_is_a_clear_device_by_a_journal_that_knows_the_lease_or_a_new_boot(
    is_clear: bool, epoch: int, is_new_boot: bool
) -> None:
    report = a_gpu_report(is_clear=is_clear, epoch=epoch)

    seen = a_gpu(S.CLEARING).seen(report, is_new_boot=is_new_boot)

    is_proof = is_new_boot or (is_clear and epoch >= 7)
    assert (seen.state is S.FREE) is is_proof
    assert (seen.lease_id is None) is is_proof


@pytest.mark.parametrize("state", [S.FREE, S.CLEARING, S.ABSENT])
def test_a_process_that_will_not_die_quarantines_the_gpu(state: GpuState) -> None:
    stuck = a_gpu(state).seen(a_gpu_report(is_stuck=True), is_new_boot=False)

    assert (stuck.state, stuck.lease_id) == (S.QUARANTINED, None)


def test_the_nodes_word_alone_ends_no_quarantine_and_a_new_boot_does() -> None:
    quarantined = a_gpu(S.QUARANTINED, epoch=7)

    assert quarantined.seen(a_gpu_report(), is_new_boot=False).state is S.QUARANTINED
    assert quarantined.seen(a_gpu_report(), is_new_boot=True).state is S.FREE


def test_a_released_gpu_comes_back_with_a_clear_word_and_is_fenced_by_a_stuck_one() -> None:
    released = a_gpu(S.QUARANTINED, epoch=7).released()

    assert (released.state, released.lease_id, released.epoch) == (S.CLEARING, None, 7)
    assert released.seen(a_gpu_report(), is_new_boot=False).state is S.FREE
    assert released.seen(a_gpu_report(is_clear=False), is_new_boot=False).state is S.CLEARING
    stuck = a_gpu_report(is_stuck=True)
    assert released.seen(stuck, is_new_boot=False).state is S.QUARANTINED


@pytest.mark.parametrize("state", [S.FREE, S.HELD, S.CLEARING, S.ABSENT])
def test_only_quarantine_is_released(state: GpuState) -> None:
    with pytest.raises(GpuNotQuarantined, match=f"is {state}, not QUARANTINED"):
        a_gpu(state).released()


def test_a_gpu_its_node_does_not_show_is_absent_unless_it_waits_for_proof() -> None:
    assert a_gpu(S.FREE).unseen(is_new_boot=False).state is S.ABSENT
    assert a_gpu(S.HELD).unseen(is_new_boot=True).state is S.HELD
    assert a_gpu(S.CLEARING).unseen(is_new_boot=False).state is S.CLEARING
    assert a_gpu(S.CLEARING).unseen(is_new_boot=True).state is S.ABSENT


def test_a_new_gpu_is_free_once_it_is_clear() -> None:
    clear = first_seen(a_gpu_report(), gpu_id="gpu_1", node_id="node_1")
    busy = first_seen(a_gpu_report(is_clear=False), gpu_id="gpu_1", node_id="node_1")

    assert (clear.state, busy.state) == (S.FREE, S.CLEARING)
    assert busy.seen(a_gpu_report(epoch=0), is_new_boot=False).state is S.FREE


def test_a_node_that_lost_its_journal_keeps_the_gpus_that_are_proven() -> None:
    assert a_gpu(S.FREE, epoch=7).seen(a_gpu_report(epoch=0), is_new_boot=False).state is S.FREE


def test_the_device_itself_may_change_while_nobody_has_it() -> None:
    report = a_gpu_report(tier="h200-141gb", device_id="GPU-9")

    seen = a_gpu(S.FREE).seen(report, is_new_boot=False)

    assert (seen.tier, seen.device_id) == ("h200-141gb", "GPU-9")


@pytest.mark.parametrize(
    ("state", "phase", "is_clear", "is_stuck", "is_new_boot"),
    list(product(S, [P.RUNNING, P.DRAINING, P.LOST, P.CLOSED], *([[True, False]] * 3))),
)
def test_every_step_is_a_legal_move(
    state: GpuState, phase: LeasePhase, is_clear: bool, is_stuck: bool, is_new_boot: bool
) -> None:
    report = a_gpu_report(is_clear=is_clear, is_stuck=is_stuck)
    before = a_gpu(state)
    left = before.after(a_lease(phase))
    seen, unseen = left.seen(report, is_new_boot=is_new_boot), left.unseen(is_new_boot=is_new_boot)

    allowed = MOVES[state] | {state}
    through = allowed | MOVES[left.state]
    assert left.state in allowed
    assert {seen.state, unseen.state} <= through
