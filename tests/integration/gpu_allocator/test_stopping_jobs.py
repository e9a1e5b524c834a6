"""The durable allocator-job: a stop that the scheduler told of."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as pb
from lehr.events import codec, subjects
from lehr.events.envelope import Envelope
from lehr.events.job import JobStopping
from lehr.ids import event_uuid
from tests.integration.gpu_allocator.story import Allocator, NodeUnderTest, instant, until
from tests.support.servers import NatsForTests

NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
async def bus(nats_server: NatsForTests) -> AsyncIterator[Client]:
    """A connection as the scheduler's relay has it."""
    client = await nats.connect(
        nats_server.url, user=nats_server.user, password=nats_server.password
    )
    yield client
    await client.close()


def stopping(lease: pb.Lease, *, ago: float, **fields: str) -> Envelope[JobStopping]:
    """Return what the scheduler says of a job that it was asked to stop."""
    data = JobStopping(
        tenant=fields.get("tenant", "acme"),
        job_id=lease.job_id,
        project="default",
        name="a job",
        run_ordinal=1,
        run_id=lease.run_id,
        lease_id=fields.get("lease_id", lease.lease_id),
        stop_time=NOW - timedelta(seconds=ago),
        reason=fields.get("reason", "USER_STOPPED"),
    )
    return Envelope(
        event_id=str(event_uuid()),
        source="/services/scheduler",
        type=data.type_name(),
        subject_id=data.subject_id,
        tenant=data.tenant,
        sequence=3,
        time=NOW,
        traceparent="",
        data=data,
    )


async def publish(bus: Client, envelope: Envelope[JobStopping], *, message_id: str = "") -> None:
    """Publish as the relay does."""
    headers = {"Nats-Msg-Id": message_id or envelope.event_id}
    subject = subjects.build(envelope.data)
    await bus.jetstream().publish(subject, codec.encode(envelope), headers=headers)


async def until_all_are_settled(bus: Client) -> None:
    """Wait until the newest message of the stream, and all before it, are done with."""
    newest = (await bus.jetstream().stream_info("JOBS")).state.last_seq

    async def is_settled() -> bool:
        floor = (await bus.jetstream().consumer_info("JOBS", "allocator-job")).ack_floor
        return floor is not None and floor.stream_seq >= newest

    await until(is_settled)


async def dead_letters(bus: Client) -> list[str]:
    """Return the reasons of what was given up."""
    try:
        letter = await bus.jetstream().get_last_msg("DLQ", "dlq.allocator-job")
    except NotFoundError:
        return []
    return [(letter.headers or {})["Lehr-Reason"]]


async def test_a_stop_reaches_the_lease(
    allocator: Allocator, node: NodeUnderTest, bus: Client
) -> None:
    lease = await allocator.granted()
    await node.run(lease)

    await publish(bus, stopping(lease, ago=1))
    await until_all_are_settled(bus)

    stopped = await allocator.lease(lease.lease_id)
    assert instant(stopped, "stop_time") == NOW - timedelta(seconds=1)


async def test_a_stop_told_twice_is_one_change(
    allocator: Allocator, node: NodeUnderTest, bus: Client
) -> None:
    lease = await allocator.granted()
    await node.run(lease)
    told = stopping(lease, ago=1)

    await publish(bus, told)
    await publish(bus, told, message_id="again")
    await until_all_are_settled(bus)

    assert (await allocator.lease(lease.lease_id)).version == 3
    assert await allocator.value("SELECT count(*) FROM gpu_allocator.inbox") == 1


async def test_stops_out_of_order_leave_the_earliest(
    allocator: Allocator, node: NodeUnderTest, bus: Client
) -> None:
    lease = await allocator.granted()
    await node.run(lease)

    await publish(bus, stopping(lease, ago=9))
    await publish(bus, stopping(lease, ago=4))
    await until_all_are_settled(bus)

    stopped = await allocator.lease(lease.lease_id)
    assert instant(stopped, "stop_time") == NOW - timedelta(seconds=9)


async def test_a_stop_of_a_job_without_a_lease_is_nothing_to_do(
    allocator: Allocator, node: NodeUnderTest, bus: Client
) -> None:
    lease = await allocator.granted()

    await publish(bus, stopping(lease, ago=1, lease_id=""))
    await until_all_are_settled(bus)

    assert await dead_letters(bus) == []


async def test_a_foreign_an_unreadable_and_an_unknown_stop_become_dead_letters(
    allocator: Allocator, node: NodeUnderTest, bus: Client
) -> None:
    lease = await allocator.granted()

    await publish(bus, stopping(lease, ago=1, tenant="umbrella"))
    await until_all_are_settled(bus)
    foreign = await dead_letters(bus)
    await bus.jetstream().publish("evt.job.stopping.v1.acme.job_1", b"{")
    await until_all_are_settled(bus)
    malformed = await dead_letters(bus)
    await publish(bus, stopping(lease, ago=1, reason="BOREDOM"))
    await until_all_are_settled(bus)

    assert foreign == ["LEASE_NOT_FOUND"]
    assert malformed == ["EVENT_MALFORMED"]
    assert await dead_letters(bus) == ["RUN_END_UNKNOWN"]
    assert not (await allocator.lease(lease.lease_id)).HasField("stop_time")
