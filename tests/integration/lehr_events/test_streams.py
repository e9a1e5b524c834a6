"""Applying and comparing the declaration against a real NATS server."""

import asyncio
import json
import sys
from typing import Any

import pytest
from nats.aio.client import Client

from lehr.events import streams
from lehr.events.streams import BrokerRefused, StreamsDiffer, apply, check, declared, differences
from tests.integration.lehr_events.nats_server import NatsServer


async def test_applying_makes_a_bare_server_as_declared(client: Client) -> None:
    before = await differences(client, declared())

    done = await apply(client, declared())

    assert "stream JOBS is missing" in before
    assert "durable billing-lease is missing" in before
    assert len(done) == len(declared().streams) + len(declared().durables)
    assert await differences(client, declared()) == []


async def test_applying_twice_changes_nothing(bus: Client) -> None:
    assert await apply(bus, declared()) == []


async def test_runs_are_flushed_lazily_and_drop_the_oldest(bus: Client) -> None:
    answer = json.loads((await bus.request("$JS.API.STREAM.INFO.RUNS")).data)

    assert (answer["config"]["persist_mode"], answer["config"]["discard"]) == ("async", "old")


async def test_a_differing_durable_is_refused_by_name_and_key(bus: Client) -> None:
    await change_durable(bus, ack_wait=5_000_000_000)

    with pytest.raises(StreamsDiffer) as refused:
        await check(bus, declared(), durables=["billing-lease"])

    assert "durable billing-lease.ack_wait is 5000000000, declared is 30000000000" in str(
        refused.value
    )


async def test_a_difference_in_another_service_s_durable_is_not_ours(bus: Client) -> None:
    await change_durable(bus, ack_wait=5_000_000_000)

    await check(bus, declared(), durables=["billing-job"])


async def test_a_deleted_durable_is_missed(bus: Client) -> None:
    await bus.jetstream().delete_consumer("LEASES", "billing-lease")

    with pytest.raises(StreamsDiffer, match="durable billing-lease is missing"):
        await check(bus, declared(), durables=["billing-lease"])


async def test_a_stream_that_a_framework_has_loosened_is_noticed(bus: Client) -> None:
    config = (await bus.jetstream().stream_info("JOBS")).config
    await bus.jetstream().update_stream(config, max_age=0, max_bytes=-1)

    found = await differences(bus, declared())

    assert [line.split(" is ")[0] for line in found] == [
        "stream JOBS.max_age",
        "stream JOBS.max_bytes",
    ]


async def test_a_changed_limit_is_applied_to_an_existing_stream(bus: Client) -> None:
    smaller = declared().streams["CAT"].model_copy(update={"max_age": 3600})
    changed = declared().model_copy(update={"streams": {**declared().streams, "CAT": smaller}})

    assert await apply(bus, changed) == ["updated stream CAT"]
    assert await differences(bus, changed) == []


async def test_a_key_that_cannot_change_is_told_and_nothing_is_deleted(bus: Client) -> None:
    other = declared().streams["RUNS"].model_copy(update={"persist_mode": "default"})
    changed = declared().model_copy(update={"streams": {**declared().streams, "RUNS": other}})

    with pytest.raises(StreamsDiffer, match=r"RUNS.persist_mode .*delete the stream first"):
        await apply(bus, changed)


async def test_no_answer_is_an_outage_and_not_a_difference(
    bus: Client, bare_nats: NatsServer
) -> None:
    bare_nats.kill()

    with pytest.raises(BrokerRefused):
        await differences(bus, declared())

    # nats-py 2.16 may swallow the cancellation of a reconnect, and the loop would never end.
    bare_nats.start()
    async with asyncio.timeout(30):
        while not bus.is_connected:
            await asyncio.sleep(0.05)


async def test_the_command_applies_and_then_finds_no_difference(bare_nats: NatsServer) -> None:
    before = await command("check", bare_nats)
    applied = await command("apply", bare_nats)
    after = await command("check", bare_nats)

    assert before[0] == 1
    assert "stream JOBS is missing" in before[1]
    assert (applied[0], after[0]) == (0, 0)
    assert "streams are as declared" in after[1]


async def test_the_command_says_so_when_there_is_no_server(bare_nats: NatsServer) -> None:
    bare_nats.kill()

    status, told = await command("check", bare_nats)

    assert status == 1
    assert f"no connection to {bare_nats.url}" in told


async def command(name: str, server: NatsServer) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", streams.__name__, name,
        env={
            "LEHR_NATS_URL": server.url,
            "LEHR_NATS_USER": server.user,
            "LEHR_NATS_PASSWORD": server.password,
            "PYTHONPATH": ":".join(sys.path),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def change_durable(client: Client, **changes: Any) -> None:
    config = {**declared().durables["billing-lease"].config("billing-lease"), **changes}
    request = {"stream_name": "LEASES", "action": "update", "config": config}
    await client.request(
        "$JS.API.CONSUMER.CREATE.LEASES.billing-lease", json.dumps(request).encode()
    )
