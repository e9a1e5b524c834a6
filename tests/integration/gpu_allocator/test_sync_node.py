"""SyncNode: phases and instants by ages, proof of death, and which word counts."""

from datetime import UTC, datetime, timedelta

import pytest

from lehr import faults
from lehr.errors import FailedPrecondition, InvalidArgument, Unavailable
from tests.integration.gpu_allocator.story import (
    CLEARING,
    CLOSED,
    DRAINING,
    FREE,
    GRANTED,
    HELD,
    QUARANTINED,
    RUNNING,
    STARTING,
    Allocator,
    NodeUnderTest,
    says,
    seconds_between,
)

ALPHA = ("alpha", 0)


async def test_the_life_of_a_lease_is_told_once_a_change(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    (told,) = (await node.sync()).leases
    node.epoch, node.is_clear = lease.epoch, False
    await node.sync(says(lease, STARTING))
    await node.sync(says(lease, RUNNING, running_age=0.01))
    await node.sync(says(lease, RUNNING, running_age=0.5, committed_age=0.1))
    node.is_clear = True
    await node.sync(says(lease, DRAINING, running_age=1, end_age=0.1))
    states = await allocator.gpu_states()
    answer = await node.sync(says(lease, CLOSED, running_age=1, end_age=0.1))

    closed = await allocator.lease(lease.lease_id)
    assert (told.lease.epoch, list(told.ordinals), told.should_stop) == (lease.epoch, [0], False)
    assert states[ALPHA] == FREE
    assert (list(answer.leases), closed.phase, closed.close_reason) == ([], CLOSED, "COMPLETED")
    assert await allocator.events_of(lease.lease_id) == [
        ("lehr.lease.granted.v1", 1),
        ("lehr.lease.phase.v1", 2),
        ("lehr.lease.phase.v1", 3),
        ("lehr.lease.phase.v1", 4),
        ("lehr.lease.phase.v1", 5),
        ("lehr.lease.closed.v1", 6),
    ]


async def test_a_sync_with_nothing_new_writes_no_event_and_no_change(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    await node.run(lease)
    counted = "SELECT last_number + (SELECT count(*) FROM gpu_allocator.outbox)"
    counted += " FROM gpu_allocator.lease_changes"
    before, alive = await allocator.value(counted), await allocator.lease(lease.lease_id)

    for _ in range(5):
        await node.sync(says(lease, RUNNING, running_age=1, progress_age=0.1, pids=[4, 5]))

    after = await allocator.lease(lease.lease_id)
    assert await allocator.value(counted) == before
    assert after.version == alive.version
    assert after.alive_time.ToDatetime() > alive.alive_time.ToDatetime()
    (held,) = (await allocator.held()).leases
    assert list(held.pids) == [4, 5]


async def test_an_end_that_is_told_minutes_late_is_stamped_by_its_age(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    await node.run(lease)
    running = await allocator.lease(lease.lease_id)
    await allocator.shift(600)

    await node.sync(says(lease, CLOSED, running_age=600, end_age=570, close_reason="USER_ERROR"))

    closed = await allocator.lease(lease.lease_id)
    assert closed.running_time == running.running_time
    assert 25 < seconds_between(closed, "running_time", "end_time") < 40
    assert seconds_between(closed, "end_time", "close_time") == pytest.approx(570, abs=0.01)


async def test_running_never_begins_before_the_grant_nor_ends_in_the_future(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()

    await node.sync(says(lease, CLOSED, running_age=9e8, end_age=-9e8))

    closed = await allocator.lease(lease.lease_id)
    assert closed.running_time == closed.grant_time
    assert closed.end_time == closed.close_time


async def test_the_same_sync_twice_is_applied_once_and_answered_the_same(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    request = node.request(says(lease, RUNNING, running_age=0.1))
    first = await node.send(request)
    before = await allocator.lease(lease.lease_id)

    second = await node.send(request, replica=1)

    assert second == first
    assert await allocator.lease(lease.lease_id) == before


async def test_a_sync_whose_answer_was_lost_is_sent_again_without_harm(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    request = node.request(says(lease, RUNNING, running_age=0.1))
    point = "gpu_allocator.sync_node.after_commit"
    # The client itself sends four times before it gives up.
    faults.arm(allocator.services[0].faults, point, action="error", times=4)

    with pytest.raises(Unavailable):
        await node.send(request)
    answer = await node.send(request)

    assert [told.lease.phase for told in answer.leases] == [RUNNING]
    assert len(await allocator.events_of(lease.lease_id)) == 2


async def test_an_older_incarnation_is_refused_and_changes_nothing(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    late = node.request(says(lease, CLOSED))
    node.starts_anew()
    await node.sync(says(lease, STARTING))

    with pytest.raises(FailedPrecondition, match="incarnation 1 is not heard any more") as refused:
        await node.send(late)

    assert refused.value.reason == "FENCED"
    assert (await allocator.lease(lease.lease_id)).phase == STARTING


async def test_a_new_incarnation_closes_what_it_does_not_know_at_the_last_word(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    await node.run(lease, running_age=0.1)
    alive = await allocator.lease(lease.lease_id)
    await allocator.shift(300)
    node.starts_anew()
    node.is_clear = True

    answer = await node.sync()

    closed = await allocator.lease(lease.lease_id)
    assert (closed.phase, closed.close_reason) == (CLOSED, "NODE_LOST")
    assert closed.end_time == closed.alive_time == alive.alive_time
    assert (list(answer.leases), (await allocator.gpu_states())[ALPHA]) == ([], FREE)


async def test_a_new_incarnation_begins_a_lease_that_is_only_granted(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    await node.sync()
    node.starts_anew()

    (told,) = (await node.sync()).leases

    assert (told.lease.lease_id, told.lease.phase) == (lease.lease_id, GRANTED)
    assert not told.is_fenced


async def test_a_gpu_is_granted_again_only_after_proof_that_nothing_runs(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    await node.run(lease)
    await node.sync(says(lease, CLOSED))
    waiting = await allocator.gpu_states()
    refused = await allocator.acquire()
    held = await allocator.held()

    node.is_clear = True
    await node.sync()

    assert (waiting[ALPHA], refused.HasField("lease")) == (CLEARING, False)
    assert (held.held_count, held.used_count, list(held.differences)) == (1, 1, [])
    assert (await allocator.gpu_states())[ALPHA] == FREE
    assert (await allocator.granted()).epoch > lease.epoch


async def test_a_clear_device_proves_nothing_while_the_journal_has_not_heard_of_the_lease(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    offered = node.request()
    await node.send(offered)
    node.is_clear = True
    # The node has not got that answer, and the lease is closed meanwhile.
    await allocator.silent_until(lease.lease_id, CLOSED)

    (told,) = (await node.sync()).leases
    waiting = await allocator.gpu_states()
    node.epoch = told.lease.epoch
    await node.sync()

    assert (told.is_fenced, told.lease.lease_id, list(told.ordinals)) == (
        True,
        lease.lease_id,
        [0],
    )
    assert waiting[ALPHA] == CLEARING
    assert (await allocator.gpu_states())[ALPHA] == FREE


async def test_a_new_boot_is_proof_of_death(allocator: Allocator, node: NodeUnderTest) -> None:
    lease = await allocator.granted()
    await node.run(lease)
    node.starts_anew(boot_id="boot-2")
    node.epoch = 0

    await node.sync()

    assert (await allocator.lease(lease.lease_id)).phase == CLOSED
    assert (await allocator.gpu_states())[ALPHA] == FREE


async def test_a_process_that_will_not_die_takes_its_gpu_out_of_use_until_the_next_boot(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    await node.run(lease)
    node.is_stuck = True
    await node.sync(says(lease, CLOSED, close_reason="USER_STOPPED"))
    stuck = (await allocator.gpu_states(), await allocator.acquire(), await allocator.held())
    node.is_stuck, node.is_clear = False, True
    await node.sync()
    still = await allocator.gpu_states()
    node.starts_anew(boot_id="boot-2")
    await node.sync()

    states, answer, held = stuck
    assert (states[ALPHA], still[ALPHA], answer.HasField("lease")) == (
        QUARANTINED,
        QUARANTINED,
        False,
    )
    assert (held.held_count, held.used_count, list(held.differences)) == (0, 0, [])
    assert (await allocator.gpu_states())[ALPHA] == FREE


async def test_a_stop_time_only_moves_earlier(allocator: Allocator, node: NodeUnderTest) -> None:
    lease = await allocator.granted()
    await node.run(lease)
    now = datetime.now(UTC)

    first = await allocator.stop(lease.lease_id, at=now - timedelta(seconds=5))
    later = await allocator.stop(lease.lease_id, at=now)
    earlier = await allocator.stop(
        lease.lease_id, at=now - timedelta(seconds=9), reason="PREEMPTED"
    )
    (told,) = (await node.sync(says(lease, RUNNING))).leases

    assert later == first
    assert seconds_between(earlier, "stop_time", "stop_time") == 0
    assert (first.stop_time.seconds - earlier.stop_time.seconds, earlier.version) == (4, 4)
    assert (told.should_stop, told.stop_reason) == (True, "USER_STOPPED")


async def test_a_stop_in_the_future_counts_from_now(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    await node.run(lease)

    stopped = await allocator.stop(lease.lease_id, at=datetime.now(UTC) + timedelta(hours=1))

    assert abs(seconds_between(stopped, "alive_time", "stop_time")) < 30


async def test_stopping_a_lease_no_node_was_told_of_frees_its_gpus_at_once(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()

    stopped = await allocator.stop(lease.lease_id)

    assert (stopped.phase, stopped.close_reason) == (CLOSED, "USER_STOPPED")
    assert (await allocator.gpu_states())[ALPHA] == FREE
    assert (await node.sync()).leases == []
    assert (await allocator.events_of(lease.lease_id))[-1][0] == "lehr.lease.closed.v1"


async def test_stopping_a_lease_its_node_knows_waits_for_the_node(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    await node.sync()

    stopped = await allocator.stop(lease.lease_id)
    (told,) = (await node.sync()).leases
    await node.sync(says(lease, CLOSED, close_reason="USER_STOPPED"))
    again = await allocator.stop(lease.lease_id)

    assert (stopped.phase, told.should_stop) == (GRANTED, True)
    assert (again.phase, again.close_reason) == (CLOSED, "USER_STOPPED")
    assert not again.HasField("running_time")


async def test_a_draining_node_gets_nothing_new_and_gives_back_what_it_has_not_begun(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()

    answer = await node.sync(is_draining=True)

    closed = await allocator.lease(lease.lease_id)
    assert (list(answer.leases), closed.phase, closed.close_reason) == ([], CLOSED, "NODE_LOST")
    assert (await allocator.gpu_states())[ALPHA] == FREE
    assert not (await allocator.acquire()).HasField("lease")


async def test_a_gpu_that_its_node_no_longer_shows_is_not_granted(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    node.gpu_count = 0
    await node.sync()

    assert not (await allocator.acquire()).HasField("lease")
    node.gpu_count = 1
    await node.sync()
    assert (await allocator.acquire()).HasField("lease")
    assert (await allocator.gpu_states())[ALPHA] == HELD


async def test_a_tier_that_nobody_described_is_refused_with_those_that_are(
    allocator: Allocator,
) -> None:
    with pytest.raises(InvalidArgument, match=r"tier h900, which .* does not describe; it knows"):
        await NodeUnderTest(allocator=allocator, name="gamma", tier="h900").sync()


async def test_a_malformed_sync_is_told_everything_that_is_wrong(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    node.tier = ""
    wrong = node.request(boot_id="", incarnation=0)

    with pytest.raises(InvalidArgument) as refused:
        await node.send(wrong)

    assert [one.field for one in refused.value.fields] == [
        "boot_id",
        "incarnation",
        "gpus[0].tier",
    ]
