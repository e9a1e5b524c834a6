"""Silence: a lost node, an allocator that was away, and a node that comes back."""

import pytest

from tests.integration.gpu_allocator.story import (
    ABSENT,
    CLOSED,
    FREE,
    HELD,
    LOST,
    RUNNING,
    STARTING,
    Allocator,
    NodeUnderTest,
    says,
    until,
)

ALPHA = ("alpha", 0)


@pytest.fixture
async def lost(allocator: Allocator, node: NodeUnderTest) -> str:
    """A lease whose node has been silent for longer than is borne."""
    lease = await allocator.granted()
    await node.run(lease, running_age=0.1)
    await allocator.silent_until(lease.lease_id, LOST)
    return lease.lease_id


async def test_silence_loses_a_lease_at_its_last_word_and_keeps_its_gpus(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    await node.run(lease, running_age=0.1)
    alive = await allocator.lease(lease.lease_id)

    await allocator.pass_seconds(6)
    in_time = await allocator.lease(lease.lease_id)
    late = await allocator.silent_until(lease.lease_id, LOST)

    assert (in_time.phase, late.phase, late.close_reason) == (RUNNING, LOST, "NODE_LOST")
    assert late.end_time == late.alive_time == alive.alive_time
    assert (await allocator.gpu_states())[ALPHA] == HELD
    assert (await allocator.events_of(lease.lease_id))[-1] == ("lehr.lease.phase.v1", 3)


async def test_time_in_which_the_allocator_was_away_does_not_count(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    await node.run(lease)
    await allocator.beat()

    await allocator.shift(3600)
    await allocator.beat()
    after_outage = await allocator.lease(lease.lease_id)
    await node.sync(says(lease, RUNNING))
    await allocator.silent_until(lease.lease_id, LOST)

    assert after_outage.phase == RUNNING
    counted = "SELECT count(*) FROM gpu_allocator.outages WHERE end_time - begin_time > '1 hour'"
    assert await allocator.value(counted) == 1


async def test_a_lease_that_its_node_never_mentions_is_closed(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()

    closed = await allocator.silent_until(lease.lease_id, CLOSED)

    assert (closed.phase, closed.close_reason) == (CLOSED, "NODE_LOST")
    assert closed.close_message.endswith("did not take the lease within 25 s")
    assert (await allocator.held()).held_count == 0


async def test_a_run_that_never_computes_is_closed_and_then_fenced(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    await node.sync(says(lease, STARTING))
    # As if it had been granted half an hour ago; the schema lets nobody rewrite that.
    await allocator.admin.execute(
        "ALTER TABLE gpu_allocator.leases DISABLE TRIGGER check_lease_change;"
        "UPDATE gpu_allocator.leases SET grant_time = grant_time - interval '31 minutes';"
        "ALTER TABLE gpu_allocator.leases ENABLE TRIGGER check_lease_change"
    )
    await allocator.beat()

    closed = await allocator.lease(lease.lease_id)
    (told,) = (await node.sync(says(lease, STARTING))).leases

    assert (closed.phase, closed.close_reason) == (CLOSED, "PLATFORM_FAULT")
    assert (told.is_fenced, told.lease.epoch) == (True, lease.epoch)


async def test_a_node_that_comes_back_is_fenced_and_its_gpu_is_free_after_proof(
    allocator: Allocator, node: NodeUnderTest, lost: str
) -> None:
    lease = await allocator.lease(lost)
    (told,) = (await node.sync(says(lease, RUNNING, running_age=60, committed_age=1))).leases
    unchanged = await allocator.lease(lost)
    during = await allocator.gpu_states()
    node.is_clear = True
    await node.sync(says(lease, CLOSED, close_reason="COMPLETED"))

    closed = await allocator.lease(lost)
    assert told.is_fenced
    assert (unchanged.version, unchanged.phase) == (lease.version, LOST)
    assert during[ALPHA] == HELD
    assert (closed.phase, closed.close_reason) == (CLOSED, "NODE_LOST")
    assert closed.end_time == lease.end_time
    assert (await allocator.gpu_states())[ALPHA] == FREE


async def test_a_lease_of_a_node_that_never_returns_is_closed_and_its_gpu_stays_out(
    allocator: Allocator, node: NodeUnderTest, lost: str
) -> None:
    closed = await allocator.silent_until(lost, CLOSED)

    held = await allocator.held()
    assert (closed.phase, closed.close_reason) == (CLOSED, "NODE_LOST")
    assert (held.held_count, held.used_count, list(held.differences)) == (1, 1, [])


async def test_the_next_attempt_may_have_other_gpus_while_the_lost_ones_wait(
    allocator: Allocator, node: NodeUnderTest, lost: str
) -> None:
    lease = await allocator.lease(lost)
    beta = NodeUnderTest(allocator=allocator, name="beta")
    await beta.sync()

    second = await allocator.granted(allocator.ask(lease.job_id, attempt=2))

    assert second.epoch > lease.epoch
    assert second.node_id != lease.node_id


async def test_a_silent_node_is_not_live_and_gets_nothing(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    await allocator.pass_seconds(12)
    refused = await allocator.acquire()

    async def is_absent() -> bool:
        await allocator.pass_seconds(3)
        return (await allocator.gpu_states())[ALPHA] == ABSENT

    assert not refused.HasField("lease")
    await until(is_absent)


async def test_a_replica_that_is_killed_and_started_again_serves_the_same_leases(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    await node.run(lease)
    for service in allocator.services:
        service.control.kill()
    for service in allocator.services:
        service.control.start()

    answer = await node.sync(says(lease, RUNNING))

    assert [told.lease.lease_id for told in answer.leases] == [lease.lease_id]


async def test_events_reach_the_stream(allocator: Allocator, node: NodeUnderTest) -> None:
    lease = await allocator.granted()
    await node.run(lease)

    async def is_told() -> bool:
        return bool((await allocator.held()).pending_event_count == 0)

    await until(is_told)
