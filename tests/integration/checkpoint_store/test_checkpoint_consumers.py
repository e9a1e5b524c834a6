"""What the store does with events about jobs and runs: happy, twice, out of order, poison, lost."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2 as pb
from lehr.errors import FailedPrecondition
from lehr.events import codec, subjects
from lehr.events.base import Event
from lehr.events.envelope import Envelope
from lehr.events.job import JobFinished
from lehr.events.run import RunBest
from lehr.ids import event_uuid, new_id
from tests.integration.checkpoint_store.story import Story, until
from tests.support.fakes_checkpoint_store import FakeScheduler
from tests.support.servers import NatsForTests


@pytest.fixture
async def bus(nats_server: NatsForTests) -> AsyncIterator[Client]:
    """A connection of somebody who publishes."""
    client = await nats.connect(
        nats_server.url, user=nats_server.user, password=nats_server.password
    )
    yield client
    await client.close()


async def say(bus: Client, event: Event, *, event_id: str | None = None) -> str:
    """Publish an event; the same id again is a second delivery past the stream's window."""
    chosen = event_id or str(event_uuid())
    envelope: Envelope[Any] = Envelope(
        event_id=chosen,
        source="/services/test",
        type=event.type_name(),
        subject_id=event.subject_id,
        tenant=event.tenant,
        sequence=1,
        time=datetime.now(UTC),
        traceparent=None,
        data=event,
    )
    await bus.jetstream().publish(subjects.build(event), codec.encode(envelope))
    return chosen


def finished(story: Story, state: str = "STOPPED") -> JobFinished:
    return JobFinished(
        tenant="acme",
        job_id=story.job_id,
        project="default",
        name="a job",
        run_ordinal=1,
        state=state,
        end_reason="USER_STOPPED",
        message="",
        finish_time=datetime.now(UTC),
    )


def best(story: Story, step: int, *, epoch: int = 1) -> RunBest:
    return RunBest(
        tenant="acme",
        run_id=new_id("run"),
        job_id=story.job_id,
        epoch=epoch,
        report_sequence=step,
        step=step,
        time=datetime.now(UTC),
        eval_loss=1.0,
    )


async def taken(story: Story, consumer: str, event_id: str) -> None:
    """Wait until the inbox holds the event."""

    async def is_there() -> bool:
        async with story.admin.connection() as conn:
            return bool(
                await conn.fetchval(
                    "SELECT count(*) FROM checkpoint_store.inbox"
                    " WHERE consumer = $1 AND event_id = $2",
                    consumer,
                    event_id,
                )
            )

    await until(is_there)


async def test_the_end_of_a_job_gives_up_its_uploads_and_frees_its_resume_source(
    story: Story, bus: Client, scheduler: FakeScheduler
) -> None:
    await story.open()
    source = await story.save(10)
    await story.open(epoch=2)
    begun = await story.announce(20, epoch=2)
    scheduler.put(story.job_id, "STOPPED")

    event_id = await say(bus, finished(story))
    await taken(story, "checkpoint-job", event_id)
    await say(bus, finished(story), event_id=event_id)

    with pytest.raises(FailedPrecondition) as refused:
        await story.commit(begun.checkpoint_id, epoch=2)
    assert refused.value.reason == "UPLOAD_GIVEN_UP"
    await story.delete(source.checkpoint_id)
    assert await story.steps() == []


async def test_a_late_end_of_a_job_that_was_resumed_changes_nothing(
    story: Story, bus: Client, scheduler: FakeScheduler
) -> None:
    await story.open()
    begun = await story.announce(10)
    await story.put(begun)
    scheduler.put(story.job_id, "RUNNING")

    await taken(story, "checkpoint-job", await say(bus, finished(story)))

    assert (await story.commit(begun.checkpoint_id)).step == 10


async def test_a_lost_end_of_a_job_is_found_by_the_sweep(
    story: Story, scheduler: FakeScheduler
) -> None:
    await story.open()
    begun = await story.announce(10)

    scheduler.put(story.job_id, "FAILED")
    scheduler.put(new_id("job"), "SUCCEEDED", tenant="other")

    async def is_given_up() -> bool:
        return (await story.get(begun.checkpoint_id)).state != pb.CHECKPOINT_STATE_UPLOADING

    await until(is_given_up)


async def test_an_announced_best_is_not_pruned_before_its_loss_is_known(
    story: Story, bus: Client
) -> None:
    await story.open()
    await taken(story, "checkpoint-run", await say(bus, best(story, 20)))
    await taken(story, "checkpoint-run", await say(bus, best(story, 10)))
    await story.save(20, keep=1)
    await story.save(30, keep=1)
    await story.save(40, keep=1)
    assert await story.steps() == [20, 40]

    await story.announce(20, loss="1.0", keep=1)
    await story.save(50, keep=1)

    assert await story.best() == [20]
    assert await story.steps() == [20, 50]


async def test_a_best_of_a_replaced_run_shields_nothing(story: Story, bus: Client) -> None:
    await story.open(epoch=5)
    await taken(story, "checkpoint-run", await say(bus, best(story, 10, epoch=4)))

    await story.save(10, epoch=5, keep=1)
    await story.save(20, epoch=5, keep=1)

    assert await story.steps() == [20]


@pytest.mark.parametrize(
    ("subject", "durable"),
    [
        ("evt.run.best.v1.acme.run_x", "checkpoint-run"),
        ("evt.job.finished.v1.acme.job_x", "checkpoint-job"),
    ],
)
async def test_a_poisoned_event_goes_to_the_dead_letters_and_holds_nobody_up(
    story: Story, bus: Client, scheduler: FakeScheduler, subject: str, durable: str
) -> None:
    await story.open()
    await bus.jetstream().publish(subject, b"{not json")
    scheduler.put(story.job_id, "STOPPED")
    await taken(story, "checkpoint-run", await say(bus, best(story, 20)))
    await taken(story, "checkpoint-job", await say(bus, finished(story)))

    async def is_parked() -> bool:
        try:
            letter = await bus.jetstream().get_last_msg("DLQ", f"dlq.{durable}")
        except nats.js.errors.NotFoundError:
            return False
        return letter.data == b"{not json"

    await until(is_parked)


async def test_the_store_works_while_nats_is_down_and_tells_later(
    story: Story, nats_server: NatsForTests
) -> None:
    nats_server.control.stop()
    try:
        await story.open()
        saved = await story.save(10, loss="1.0")
    finally:
        nats_server.control.start()

    async def is_sent() -> bool:
        async with story.admin.connection() as conn:
            return not await conn.fetchval(
                "SELECT count(*) FROM checkpoint_store.outbox"
                " WHERE sent_time IS NULL AND subject_id = $1",
                saved.checkpoint_id,
            )

    await until(is_sent, within=30)
