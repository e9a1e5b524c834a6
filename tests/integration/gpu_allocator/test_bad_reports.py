"""What a node says of one lease may be anything; the others of the node do not suffer."""

import pytest

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as pb
from tests.integration.gpu_allocator.story import (
    CLOSED,
    FREE,
    GRANTED,
    LOST,
    RUNNING,
    Allocator,
    NodeUnderTest,
    says,
)

ALPHA = ("alpha", 0)


async def test_a_trainers_last_words_may_hold_anything(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    await node.run(lease)
    node.is_clear = True

    await node.sync(
        says(
            lease, CLOSED, close_reason="USER_ERROR\0", close_message="bad file a\0b " + "x" * 9999
        )
    )

    closed = await allocator.lease(lease.lease_id)
    assert closed.close_reason == "PLATFORM_FAULT"
    assert r"'USER_ERROR\x00': bad file a\x00b xx" in closed.close_message
    assert (await allocator.gpu_states())[ALPHA] == FREE


def malformed(lease: pb.Lease, how: str) -> list[pb.LeaseReport]:
    """Return reports of one lease that cannot be heard."""
    match how:
        case "a phase that no node is in":
            return [says(lease, LOST)]
        case "no phase":
            return [says(lease, 0)]
        case "twice":
            return [says(lease, RUNNING), says(lease, CLOSED)]
        case "an endless age":
            report = says(lease, RUNNING, running_age=1)
            report.running_age.seconds = 2**62
            return [report]
        case _:
            return [pb.LeaseReport(lease_id=how, epoch=1, phase=RUNNING)]


@pytest.mark.parametrize(
    "how",
    ["a phase that no node is in", "no phase", "twice", "an endless age", "", "lease_\0"],
)
async def test_one_bad_report_of_a_lease_costs_the_others_of_its_node_nothing(
    allocator: Allocator, node: NodeUnderTest, how: str
) -> None:
    node.gpu_count = 2
    await node.sync()
    bad, good = await allocator.granted(), await allocator.granted()
    node.epoch, node.is_clear = good.epoch, False

    answer = await node.sync(*malformed(bad, how), says(good, RUNNING, running_age=0.1))

    assert {one.lease.lease_id for one in answer.leases} == {bad.lease_id, good.lease_id}
    assert (await allocator.lease(good.lease_id)).phase == RUNNING
    assert (await allocator.lease(bad.lease_id)).phase == GRANTED
