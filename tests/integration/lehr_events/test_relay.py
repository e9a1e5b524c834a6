"""The relay against real Postgres and NATS."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

from nats.aio.client import Client

from lehr import faults
from lehr.errors import Unavailable
from lehr.events import inbox, outbox
from lehr.events.publishing import publish, wrap
from lehr.events.relay import Relay
from lehr.postgres import Connection, Database
from tests.integration.lehr_events.nats_server import NatsServer
from tests.integration.lehr_events.stories import a_job_finished, say, stored, until, waiting

FAST = timedelta(milliseconds=100)


@asynccontextmanager
async def relaying(db: Database, client: Client) -> AsyncIterator[None]:
    task = asyncio.create_task(Relay(db, client, poll=FAST).run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def in_undone_transaction(
    db: Database, work: Callable[[Connection], Awaitable[object]]
) -> None:
    with suppress(ZeroDivisionError):
        async with db.transaction() as conn:
            await work(conn)
            raise ZeroDivisionError


async def all_sent(db: Database) -> bool:
    return await waiting(db) == 0


async def test_each_event_is_published_once_and_as_it_was_written(
    db: Database, bus: Client
) -> None:
    async with relaying(db, bus):
        ids = await say(db, *[a_job_finished(f"job_{number}") for number in range(20)])
        await until(lambda: all_sent(db))

    bodies = await stored(bus, "JOBS")
    assert sorted(body["id"] for body in bodies) == sorted(ids)
    assert {body["type"] for body in bodies} == {"lehr.job.finished.v1"}
    assert {body["tenant"] for body in bodies} == {"acme"}


async def test_nothing_is_published_when_the_transaction_rolls_back(
    db: Database, bus: Client
) -> None:
    await in_undone_transaction(
        db, lambda conn: outbox.add(conn, a_job_finished(), sequence=1, source="scheduler")
    )

    async with relaying(db, bus):
        await say(db, a_job_finished("job_2"))
        await until(lambda: all_sent(db))

    assert [body["subject"] for body in await stored(bus, "JOBS")] == ["job_2"]


async def test_events_of_one_aggregate_keep_their_order(db: Database, bus: Client) -> None:
    await say(db, *[a_job_finished("job_1") for _ in range(300)])

    async with relaying(db, bus):
        await until(lambda: all_sent(db))

    assert [body["sequence"] for body in await stored(bus, "JOBS")] == list(range(1, 301))


async def test_events_of_one_aggregate_keep_their_order_when_one_is_not_taken(
    db: Database, bus: Client, armed: Callable[..., Path]
) -> None:
    armed("relay.drop", action="error", times=1)
    await say(db, *[a_job_finished("job_1") for _ in range(5)])

    async with relaying(db, bus):
        await until(lambda: all_sent(db))

    assert [body["sequence"] for body in await stored(bus, "JOBS")] == [1, 2, 3, 4, 5]


async def test_a_producer_with_its_own_spool_may_say_a_fact_twice(bus: Client) -> None:
    envelope = wrap(a_job_finished(), sequence=1, source="scheduler")

    await publish(bus, envelope)
    await publish(bus, envelope)

    [body] = await stored(bus, "JOBS")
    assert (body["id"], body["source"]) == (envelope.event_id, "/services/scheduler")


async def test_a_commit_wakes_the_relay_long_before_it_would_look(
    db: Database, bus: Client
) -> None:
    task = asyncio.create_task(Relay(db, bus, poll=timedelta(hours=1)).run())
    await asyncio.sleep(0.5)

    await say(db, a_job_finished())
    await until(lambda: all_sent(db), seconds=20)

    task.cancel()
    assert len(await stored(bus, "JOBS")) == 1


async def test_events_wait_while_nats_is_down_and_go_out_after_its_restart(
    db: Database, bus: Client, bare_nats: NatsServer
) -> None:
    async with relaying(db, bus):
        await say(db, a_job_finished("job_before"))
        await until(lambda: all_sent(db))
        bare_nats.kill()
        await say(db, *[a_job_finished(f"job_{number}") for number in range(5)])
        await asyncio.sleep(0.5)
        during = await waiting(db)
        bare_nats.start()
        await until(lambda: all_sent(db))

    assert during == 5
    assert len(await stored(bus, "JOBS")) == 6


async def test_a_crash_between_publish_and_mark_sends_the_event_twice_and_both_guards_absorb_it(
    db: Database, bus: Client, armed: Callable[..., Path]
) -> None:
    armed("relay.before_mark", action="error", times=1)
    [event_id] = await say(db, a_job_finished())

    async with relaying(db, bus):
        await until(lambda: all_sent(db))

    # The stream dropped the second copy by its id; had its window passed, the inbox would.
    assert len(await stored(bus, "JOBS")) == 1
    async with db.transaction() as conn:
        assert await inbox.first_time(conn, "billing-job", event_id)
        assert not await inbox.first_time(conn, "billing-job", event_id)


async def test_a_lost_publication_is_sent_later(
    db: Database, bus: Client, armed: Callable[..., Path]
) -> None:
    file = armed("relay.drop", action="error", times=3)
    await say(db, a_job_finished())

    async with relaying(db, bus):
        await until(lambda: all_sent(db))

    assert faults.fired(file, "relay.drop") == 3
    assert len(await stored(bus, "JOBS")) == 1


async def test_of_two_relays_the_second_takes_over_when_the_first_ends(
    db: Database, bus: Client
) -> None:
    first = asyncio.create_task(Relay(db, bus, poll=FAST).run())
    second = asyncio.create_task(Relay(db, bus, poll=FAST).run())
    await say(db, a_job_finished("job_1"))
    await until(lambda: all_sent(db))

    first.cancel()
    await say(db, a_job_finished("job_2"))
    await until(lambda: all_sent(db))

    second.cancel()
    assert len(await stored(bus, "JOBS")) == 2


async def test_the_relay_outlives_its_database_connection(db: Database, bus: Client) -> None:
    async with relaying(db, bus):
        await say(db, a_job_finished("job_1"))
        await until(lambda: all_sent(db))
        await end_other_sessions(db)
        await until(lambda: said(db, "job_2"))
        await until(lambda: all_sent(db))

    assert {body["subject"] for body in await stored(bus, "JOBS")} == {"job_1", "job_2"}


async def end_other_sessions(db: Database) -> None:
    async with db.connection() as conn:
        await conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE usename = current_user AND pid <> pg_backend_pid()"
        )


async def said(db: Database, job_id: str) -> bool:
    try:
        await say(db, a_job_finished(job_id))
    except Unavailable:
        return False
    return True


async def test_an_event_that_rolls_back_is_unseen_by_the_inbox(db: Database) -> None:
    event_id = "0197a000-0000-7000-8000-000000000001"
    await in_undone_transaction(db, lambda conn: inbox.first_time(conn, "billing-job", event_id))

    async with db.transaction() as conn:
        assert await inbox.first_time(conn, "billing-job", event_id)
        assert await inbox.first_time(conn, "checkpoint-job", event_id)


async def test_flush_publishes_what_waits_without_leading(db: Database, bus: Client) -> None:
    await say(db, a_job_finished())

    await Relay(db, bus).flush()

    assert len(await stored(bus, "JOBS")) == 1
