"""ListLeaseIntervals: a cursor that misses nothing, whoever commits when."""

import asyncio

import pytest

from lehr import faults
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as pb
from lehr.errors import InvalidArgument
from tests.integration.gpu_allocator.story import (
    CLOSED,
    RUNNING,
    Allocator,
    NodeUnderTest,
    says,
)


async def read_all(allocator: Allocator, **fields: object) -> tuple[list[tuple[str, int]], str]:
    """Read pages until one is empty; return what was seen, and the last cursor."""
    seen: list[tuple[str, int]] = []
    cursor = str(fields.pop("cursor", ""))
    while True:
        page = await allocator.intervals(cursor, **fields)
        seen += [(lease.lease_id, lease.version) for lease in page.leases]
        if not page.next_cursor:
            return seen, cursor
        cursor = page.next_cursor


async def test_pages_are_in_the_order_of_changes_and_a_changed_lease_comes_again(
    allocator: Allocator,
) -> None:
    node = NodeUnderTest(allocator=allocator, name="alpha", gpu_count=4)
    await node.sync()
    first, second, third = [await allocator.granted() for _ in range(3)]
    seen, cursor = await read_all(allocator, limit=2)
    await node.sync(says(first, RUNNING))

    news, _ = await read_all(allocator, cursor=cursor)

    assert seen == [(first.lease_id, 1), (second.lease_id, 1), (third.lease_id, 1)]
    assert news == [(first.lease_id, 2)]


async def test_filters(allocator: Allocator) -> None:
    node = NodeUnderTest(allocator=allocator, name="alpha", gpu_count=4)
    await node.sync()
    first, second = [await allocator.granted() for _ in range(2)]
    await allocator.stop(first.lease_id)

    still_open, _ = await read_all(allocator, open_only=True)
    of_job, _ = await read_all(allocator, job_id=first.job_id)
    of_tenant, _ = await read_all(allocator, tenant="acme")

    assert still_open == [(second.lease_id, 1)]
    assert of_job == [(first.lease_id, 3)]
    assert len(of_tenant) == 2


async def test_a_cursor_that_is_none_is_refused(allocator: Allocator) -> None:
    with pytest.raises(InvalidArgument, match="must be next_cursor of an answer"):
        await allocator.intervals("'; DROP TABLE leases")


async def test_a_reader_misses_no_change_while_others_commit_slowly(allocator: Allocator) -> None:
    nodes = [NodeUnderTest(allocator=allocator, name=f"node-{number}") for number in range(6)]
    await asyncio.gather(*(node.sync() for node in nodes))
    # One replica takes its number and commits late, while the others overtake it if they can.
    point = "gpu_allocator.sync_node.before_commit"
    faults.arm(allocator.services[1].faults, point, action="delay", seconds=0.2, times=None)
    seen: dict[str, int] = {}
    done = asyncio.Event()

    async def read() -> None:
        cursor = ""
        is_last = False
        while not is_last:
            is_last = done.is_set()
            news, cursor = await read_all(allocator, cursor=cursor, replica=2, limit=3)
            seen.update(news)

    async def tell(node: NodeUnderTest, replica: int, *reports: pb.LeaseReport) -> None:
        async with speaking[node.name]:
            await node.send(node.request(*reports), replica=replica)

    async def work(node: NodeUnderTest, replica: int) -> None:
        for _ in range(4):
            await tell(node, replica)
            lease = await allocator.granted(allocator.ask(), within=20)
            owner = next(one for one in nodes if one.name == by_id[lease.node_id])
            await tell(owner, replica, says(lease, RUNNING))
            owner.epoch = lease.epoch
            await tell(owner, replica, says(lease, CLOSED))

    speaking = {node.name: asyncio.Lock() for node in nodes}
    rows = await allocator.admin.fetch("SELECT node_id, name FROM gpu_allocator.nodes")
    by_id = {row["node_id"]: row["name"] for row in rows}
    reader = asyncio.create_task(read())
    await asyncio.gather(*(work(node, index % 2) for index, node in enumerate(nodes)))
    done.set()
    await reader
    faults.disarm(allocator.services[1].faults)

    stored = await allocator.admin.fetch("SELECT lease_id, version FROM gpu_allocator.leases")
    assert len(stored) == 24
    assert seen == {row["lease_id"]: row["version"] for row in stored}
