"""A whole service process, its outages and its end."""

import asyncio
import json
import signal
from time import monotonic

import pytest
from nats.aio.client import Client

from lehr import faults
from lehr.events import streams
from lehr.postgres import Database
from tests.integration.lehr.lib_servers import PostgresServer
from tests.integration.lehr_events.nats_server import NatsServer
from tests.integration.lehr_events.stories import a_job_finished, say, stored, until, waiting
from tests.integration.lehr_process.story import SmallService


async def taken(db: Database) -> int:
    """Return how many events the service's subscriber has taken in."""
    async with db.connection() as conn:
        count: int = await conn.fetchval("SELECT count(*) FROM inbox")
    return count


async def test_an_event_goes_from_a_call_through_the_stream_to_a_subscriber(
    service: SmallService, db: Database, bus: Client
) -> None:
    await service.start()
    await service.until_ready()

    await service.ask("finish job_1")

    await until(lambda: taken(db))
    assert [body["subject"] for body in await stored(bus, "JOBS")] == ["job_1"]


async def test_it_lives_and_serves_while_nats_is_down_and_catches_up(
    service: SmallService, db: Database, bus: Client, bare_nats: NatsServer
) -> None:
    bare_nats.kill()
    await service.start()
    await service.until_ready()

    await service.ask("finish job_1")
    live, _ = await service.probe("/livez")
    kept = await waiting(db)
    bare_nats.start()
    await until(lambda: taken(db))
    await until(lambda: _nothing_waits(db))

    assert (live, kept) == (200, 1)


async def test_subscribers_go_on_after_nats_was_killed_and_started_again(
    service: SmallService, db: Database, bus: Client, bare_nats: NatsServer
) -> None:
    await service.start()
    await service.until_ready()
    await service.ask("finish job_1")
    await until(lambda: taken(db))

    bare_nats.kill()
    await service.ask("finish job_2")
    await asyncio.sleep(1)
    bare_nats.start()

    await until(lambda: _taken_is(db, 2))


async def _taken_is(db: Database, count: int) -> bool:
    return await taken(db) == count


async def test_it_is_not_ready_but_alive_while_postgres_is_down(
    service: SmallService, bus: Client, postgres_server: PostgresServer
) -> None:
    await service.start()
    await service.until_ready()

    postgres_server.kill()
    await service.until_ready(ready=False)
    live, _ = await service.probe("/livez")
    _, told = await service.probe("/readyz")
    postgres_server.start()
    await service.until_ready()

    assert live == 200
    assert json.loads(told)["failing"] == {"postgres": "no answer"}


async def test_it_refuses_to_run_when_a_durable_differs(service: SmallService, bus: Client) -> None:
    declared = streams.declared()
    other = declared.durables["billing-job"].model_copy(update={"max_ack_pending": 7})
    await streams.apply(bus, declared.model_copy(update={"durables": {"billing-job": other}}))

    await service.start()

    assert await service.ended() == 1
    assert "durable billing-job.max_ack_pending is 7, declared is 256" in service.log


async def test_a_durable_that_is_deleted_is_told_by_readiness_and_used_again_once_it_is_back(
    service: SmallService, db: Database, bus: Client
) -> None:
    await service.start()
    await service.until_ready()
    await service.ask("finish job_1")
    await until(lambda: taken(db))

    await bus.jetstream().delete_consumer("JOBS", "billing-job")
    await service.until_ready(ready=False)
    _, told = await service.probe("/readyz")
    await service.ask("finish job_2")
    await streams.apply(bus, streams.declared())
    await service.until_ready()

    assert "durable billing-job is missing" in told
    await until(lambda: _taken_is(db, 2))


async def test_the_loss_of_every_stream_is_survived(
    service: SmallService, db: Database, bus: Client
) -> None:
    await service.start()
    await service.until_ready()

    await bus.jetstream().delete_stream("JOBS")
    await service.until_ready(ready=False)
    await service.ask("finish job_1")
    kept = await waiting(db)
    await streams.apply(bus, streams.declared())

    await until(lambda: taken(db))
    assert kept == 1


async def test_a_kill_between_publish_and_mark_loses_and_doubles_nothing(
    service: SmallService, db: Database, bus: Client
) -> None:
    service.faults.write_text("{}", encoding="utf-8")
    faults.arm(service.faults, "relay.before_mark", action="kill", times=1)
    await say(db, a_job_finished())

    await service.start(SCHEDULER_LISTENS="false")
    killed = await service.ended()
    # As if the stream had forgotten the id, so that the inbox alone stands in the way.
    [body] = await stored(bus, "JOBS")
    await bus.publish("evt.job.finished.v1.acme.job_1", json.dumps(body).encode())
    await service.start()
    await until(lambda: _nothing_waits(db))
    await until(lambda: _said(service, "duplicate"))

    assert killed == -signal.SIGKILL
    assert await taken(db) == 1
    assert len(await stored(bus, "JOBS")) == 2


async def _nothing_waits(db: Database) -> bool:
    return await waiting(db) == 0


async def _said(service: SmallService, word: str) -> bool:
    return word in service.log


async def test_sigterm_lets_calls_finish_and_sends_what_waits(
    service: SmallService, db: Database, bus: Client
) -> None:
    await service.start()
    await service.until_ready()
    call = asyncio.create_task(service.ask("sleep 1"))
    await asyncio.sleep(0.5)

    service.signal(signal.SIGTERM)
    began = monotonic()
    status = await service.ended()

    assert status == 0
    assert await call == "sleep 1"
    assert monotonic() - began < 10


async def test_sigterm_ends_it_cleanly_while_nats_is_down(
    service: SmallService, bus: Client, bare_nats: NatsServer
) -> None:
    await service.start()
    await service.until_ready()
    bare_nats.kill()

    service.signal(signal.SIGTERM)
    began = monotonic()

    assert await service.ended() == 0
    assert monotonic() - began < 10


async def test_a_loop_that_fails_goes_on(service: SmallService, bus: Client) -> None:
    await service.start(SCHEDULER_BROKEN_LOOP="true")
    await service.until_ready()

    async def failed_twice() -> bool:
        _, page = await service.probe("/metrics")
        return 'lehr_loop_rounds_total{loop="broken",outcome="failed"} 2.0' in page

    await until(failed_twice)
    assert (await service.probe("/readyz"))[0] == 200


async def test_a_task_that_ends_by_itself_ends_the_process_for_its_supervisor(
    service: SmallService, bus: Client
) -> None:
    await service.start(SCHEDULER_ENDS_BY_ITSELF="true")

    assert await service.ended() == 1
    assert "ending has ended by itself" in service.log


async def test_no_postgres_at_the_start_is_waited_for(
    service: SmallService, bus: Client, postgres_server: PostgresServer
) -> None:
    postgres_server.kill()
    await service.start()
    await service.until_ready(ready=False)
    postgres_server.start()

    await service.until_ready()


async def test_check_only_validates_the_settings(service: SmallService) -> None:
    await service.start("--check")
    good = await service.ended()
    await service.start("--check", SCHEDULER_LISTEN="nowhere", LEHR_NATS_URL="nowhere")
    bad = await service.ended()

    assert (good, bad) == (0, 2)
    assert "settings are good" in service.log
    assert "SCHEDULER_LISTEN" in service.log
    assert "LEHR_NATS_URL" in service.log


@pytest.mark.parametrize(
    ("path", "status"), [("/livez", 200), ("/metrics", 200), ("/nothing", 404)]
)
async def test_probes_answer(service: SmallService, bus: Client, path: str, status: int) -> None:
    await service.start()
    await service.until_ready()

    assert (await service.probe(path))[0] == status
