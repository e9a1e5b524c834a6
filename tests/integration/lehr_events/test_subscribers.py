"""Durable subscribers against a real NATS server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from faststream.nats import NatsRouter
from nats.aio.client import Client
from opentelemetry.trace import SpanKind

from lehr.errors import FailedPrecondition, Unavailable
from lehr.events import codec, inbox, outcome, streams
from lehr.events.job import JobFinished
from lehr.events.relay import Relay
from lehr.events.subscribers import Consuming, Handler, durable, subscriptions_of
from lehr.postgres import Database
from lehr.rpc import auth, tracing
from lehr.settings import PlatformSettings
from tests.integration.lehr_events.stories import a_job_finished, say, until

SUBJECT = "evt.job.finished.v1.*.*"
JOB_SUBJECT = "evt.job.finished.v1.acme.job_1"
HEADERS = {"content-type": codec.CONTENT_TYPE}


class Seen:
    """Remembers the bodies that it got, and raises the errors that it was given, one a call."""

    def __init__(self, *errors: BaseException) -> None:
        self.bodies: list[bytes] = []
        self.times: list[float] = []
        self._errors = list(errors)

    async def __call__(self, body: bytes) -> None:
        self.bodies.append(body)
        self.times.append(monotonic())
        if self._errors:
            raise self._errors.pop(0)


@asynccontextmanager
async def subscribed(
    platform: PlatformSettings, handler: Handler, **options: Any
) -> AsyncIterator[None]:
    router = NatsRouter()
    durable(router, "billing-job", stream="JOBS", subject=SUBJECT, **options)(handler)
    consuming = Consuming(platform, subscriptions_of(router), name="test-subscribers")
    await consuming.start()
    yield
    await consuming.stop()


async def publish(client: Client, body: bytes) -> None:
    await client.jetstream().publish(JOB_SUBJECT, body, headers=dict(HEADERS))


async def is_settled(client: Client) -> bool:
    info = await client.jetstream().consumer_info("JOBS", "billing-job")
    return not info.num_pending and not info.num_ack_pending


async def dead_letters(client: Client) -> list[Any]:
    stream_context = client.jetstream()
    state = (await stream_context.stream_info("DLQ")).state
    return [await stream_context.get_msg("DLQ", number + 1) for number in range(state.messages)]


async def test_a_message_is_handled_in_the_tenant_and_trace_of_its_event_and_acked(
    db: Database, bus: Client, platform: PlatformSettings
) -> None:
    told: list[tuple[JobFinished, str, str | None]] = []

    async def handle(body: bytes) -> None:
        event = codec.decode(body, JobFinished).data
        told.append((event, auth.outgoing().tenant, tracing.current_traceparent()))

    with tracing.traced("test", kind=SpanKind.INTERNAL):
        trace_id = str(tracing.current_traceparent()).split("-")[1]
        await say(db, a_job_finished())
    await Relay(db, bus).flush()
    async with subscribed(platform, handle):
        await until(lambda: is_settled(bus))

    [(event, tenant, traceparent)] = told
    assert (event, tenant) == (a_job_finished(), "acme")
    assert traceparent is not None
    assert trace_id in traceparent


async def test_an_error_brings_the_message_back_after_the_first_wait(
    db: Database, bus: Client, platform: PlatformSettings
) -> None:
    seen = Seen(Unavailable("the database is away"))
    await say(db, a_job_finished())
    await Relay(db, bus).flush()

    async with subscribed(platform, seen):
        await until(lambda: is_settled(bus))

    assert len(seen.bodies) == 2
    assert seen.times[1] - seen.times[0] >= 0.9
    assert await dead_letters(bus) == []


async def test_an_error_that_nobody_foresaw_is_tried_again_too(
    db: Database, bus: Client, platform: PlatformSettings
) -> None:
    seen = Seen(KeyError("lease"))
    await say(db, a_job_finished())
    await Relay(db, bus).flush()

    async with subscribed(platform, seen):
        await until(lambda: is_settled(bus))

    assert len(seen.bodies) == 2


async def test_poison_goes_to_the_dead_letters_at_once_and_untouched(
    bus: Client, platform: PlatformSettings
) -> None:
    seen = Seen()

    async with subscribed(platform, seen):
        await publish(bus, b'{"loss": NaN')
        await until(lambda: dead_letters(bus))
        await until(lambda: is_settled(bus))

    [letter] = await dead_letters(bus)
    assert seen.bodies == []
    assert (letter.subject, letter.data) == ("dlq.billing-job", b'{"loss": NaN')
    assert letter.headers["Lehr-Reason"] == "EVENT_MALFORMED"
    assert letter.headers["Lehr-Subject"] == JOB_SUBJECT


async def test_an_error_that_will_never_pass_is_parked_at_once(
    db: Database, bus: Client, platform: PlatformSettings
) -> None:
    seen = Seen(FailedPrecondition("this account is closed", reason="ACCOUNT_CLOSED"))
    await say(db, a_job_finished())
    await Relay(db, bus).flush()

    async with subscribed(platform, seen):
        await until(lambda: is_settled(bus))

    [letter] = await dead_letters(bus)
    assert len(seen.bodies) == 1
    assert letter.headers["Lehr-Reason"] == "ACCOUNT_CLOSED"


async def test_the_twentieth_failure_is_the_last(
    db: Database, bus: Client, platform: PlatformSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "BACKOFF", (timedelta(milliseconds=1),))
    seen = Seen(*[Unavailable("still away") for _ in range(30)])
    await say(db, a_job_finished())
    await Relay(db, bus).flush()

    async with subscribed(platform, seen):
        await until(lambda: dead_letters(bus))
        await until(lambda: is_settled(bus))

    [letter] = await dead_letters(bus)
    assert len(seen.bodies) == 20
    assert letter.headers["Lehr-Delivery"] == "20"
    assert letter.headers["Lehr-Reason"] == "TRIED_20_TIMES: UNAVAILABLE"


async def test_a_message_that_was_handled_but_not_acked_comes_again_and_the_inbox_absorbs_it(
    db: Database,
    bus: Client,
    platform: PlatformSettings,
    armed: Callable[..., Path],
) -> None:
    await acking_within(bus, seconds=1)
    armed("subscriber.before_ack", action="error", times=1)
    effects: list[bool] = []

    async def handle(body: bytes) -> None:
        async with db.transaction() as conn:
            event_id = codec.peek(body)["id"]
            effects.append(await inbox.first_time(conn, "billing-job", event_id))

    await say(db, a_job_finished())
    await Relay(db, bus).flush()
    async with subscribed(platform, handle):
        await until(lambda: is_settled(bus))

    assert effects == [True, False]


async def acking_within(client: Client, *, seconds: int) -> None:
    declared = streams.declared()
    faster = declared.durables["billing-job"].model_copy(update={"ack_wait": seconds})
    changed = declared.model_copy(update={"durables": {"billing-job": faster}})
    await streams.apply(client, changed)


async def test_a_handler_that_takes_too_long_is_cut_off_and_tried_again(
    db: Database, bus: Client, platform: PlatformSettings
) -> None:
    calls: list[bytes] = []

    async def handle(body: bytes) -> None:
        calls.append(body)
        await asyncio.sleep(3600 if len(calls) == 1 else 0)

    await say(db, a_job_finished())
    await Relay(db, bus).flush()
    async with subscribed(platform, handle, timeout_seconds=0.2):
        await until(lambda: is_settled(bus))

    assert len(calls) == 2


async def test_subscribing_leaves_streams_and_durables_as_they_are_declared(
    bus: Client, platform: PlatformSettings
) -> None:
    async with subscribed(platform, Seen()):
        assert await streams.differences(bus, streams.declared()) == []


async def test_messages_of_one_durable_are_handled_one_by_one_in_order(
    db: Database, bus: Client, platform: PlatformSettings
) -> None:
    running: list[int] = []
    order: list[int] = []

    async def handle(body: bytes) -> None:
        running.append(1)
        assert len(running) == 1
        await asyncio.sleep(0.01)
        order.append(codec.peek(body)["sequence"])
        running.pop()

    await say(db, *[a_job_finished() for _ in range(20)])
    await Relay(db, bus).flush()
    async with subscribed(platform, handle):
        await until(lambda: is_settled(bus))

    assert order == list(range(1, 21))


async def test_stopping_lets_the_handler_in_progress_finish_and_ack(
    db: Database, bus: Client, platform: PlatformSettings
) -> None:
    began = asyncio.Event()

    async def handle(_body: bytes) -> None:
        began.set()
        await asyncio.sleep(0.5)

    await say(db, a_job_finished())
    await Relay(db, bus).flush()
    async with subscribed(platform, handle):
        await asyncio.wait_for(began.wait(), timeout=60)

    assert await is_settled(bus)


def test_a_router_tells_which_durables_it_reads() -> None:
    router = NatsRouter()
    durable(router, "billing-job", stream="JOBS", subject=SUBJECT)(Seen())
    durable(router, "billing-lease", stream="LEASES", subject="evt.lease.*.v1.*.*")(Seen())

    names = [subscription.consumer.name for subscription in subscriptions_of(router)]
    assert names == ["billing-job", "billing-lease"]


async def test_the_dead_letters_hold_one_copy_however_often_parking_is_repeated(
    bus: Client, platform: PlatformSettings
) -> None:
    async with subscribed(platform, Seen()):
        await publish(bus, b"no event")
        await until(lambda: dead_letters(bus))
    await bus.jetstream().delete_consumer("JOBS", "billing-job")
    await streams.apply(bus, streams.declared())

    async with subscribed(platform, Seen()):
        await until(lambda: is_settled(bus))

    assert len(await dead_letters(bus)) == 1
    assert len((await bus.jetstream().stream_info("JOBS")).config.subjects or []) == 1
    assert len(await stored_raw(bus)) == 1


async def stored_raw(client: Client) -> list[Any]:
    state = (await client.jetstream().stream_info("JOBS")).state
    return [await client.jetstream().get_msg("JOBS", n + 1) for n in range(state.messages)]
