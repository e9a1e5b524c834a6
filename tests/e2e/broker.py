"""What a test does to the broker of a stack: tell everything again, forget what was told."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from lehr.events import codec
from tests.e2e.world import World, eventually

MESSAGE_ID = "Nats-Msg-Id"
_AGAIN = "again-"


@asynccontextmanager
async def connected(world: World) -> AsyncIterator[Client]:
    """Give a connection with the rights of the installation."""
    given = world.stack.environment
    client = await nats.connect(
        given["LEHR_NATS_URL"], user=given["LEHR_NATS_USER"], password=given["LEHR_NATS_PASSWORD"]
    )
    try:
        yield client
    finally:
        await client.close()


@dataclass
class Recorder:
    """Events as they were told, oldest first, and how many of them were told again."""

    heard: list[Msg] = field(default_factory=list)
    echoes: int = 0

    def of(self, *subject_ids: str) -> list[Msg]:
        """Return those about some aggregates."""
        return [one for one in self.heard if one.subject.rpartition(".")[2] in subject_ids]


@asynccontextmanager
async def listening(world: World, *subjects: str, echo: bool = False) -> AsyncIterator[Recorder]:
    """Record what is told; with ``echo`` each event is told a second time at once.

    The second telling has an id of its own, so that the stream takes it for another message.
    """
    recorder = Recorder()
    async with connected(world) as client:

        async def hear(message: Msg) -> None:
            if (message.headers or {}).get(MESSAGE_ID, "").startswith(_AGAIN):
                return
            recorder.heard.append(message)
            if echo:
                await tell_again(client, message)
                recorder.echoes += 1

        for subject in subjects:
            await client.subscribe(subject, cb=hear)
        await client.flush()
        yield recorder


async def tell_again(client: Client, *messages: Msg) -> None:
    """Publish events once more, beyond the reach of the stream's window for duplicates."""
    for message in messages:
        headers = {MESSAGE_ID: f"{_AGAIN}{uuid.uuid4().hex}", "content-type": codec.CONTENT_TYPE}
        acked = await client.jetstream().publish(
            message.subject, message.data, headers=headers, timeout=10
        )
        assert not acked.duplicate


async def digested(world: World, *durables: tuple[str, str]) -> None:
    """Wait until nothing is left for these durables, each with its stream, to handle."""
    async with connected(world) as client:

        async def look() -> bool | None:
            left = {name: await _left(client, stream, name) for stream, name in durables}
            assert not any(left.values()), left
            return True

        await eventually(look)


async def _left(client: Client, stream: str, durable: str) -> int:
    info = await client.jetstream().consumer_info(stream, durable)
    return (info.num_pending or 0) + (info.num_ack_pending or 0)


async def stored(world: World, stream: str, subjects: str) -> Mapping[str, int]:
    """Count what a stream keeps by subject."""
    async with connected(world) as client:
        info = await client.jetstream().stream_info(stream, subjects_filter=subjects)
        return info.state.subjects or {}


async def forget(world: World, *streams: str) -> None:
    """Empty streams; once the server is started again, it knows no id of what was in them."""
    async with connected(world) as client:
        for stream in streams:
            await client.jetstream().purge_stream(stream)


@asynccontextmanager
async def impatient(
    world: World, stream: str, durable: str, *, ack_wait: float
) -> AsyncIterator[None]:
    """Let a durable wait only so long for an acknowledgement before it delivers again."""
    async with connected(world) as client:
        answer = await _request(client, f"CONSUMER.INFO.{stream}.{durable}", {})
        before = answer["config"]
        method = f"CONSUMER.CREATE.{stream}.{durable}"
        request = {"stream_name": stream, "action": "update"}
        changed = {**before, "ack_wait": int(ack_wait * 1e9)}
        await _request(client, method, {**request, "config": changed})
        try:
            yield
        finally:
            await _request(client, method, {**request, "config": before})


async def _request(client: Client, method: str, body: Mapping[str, Any]) -> Any:
    # Raw requests, for the client library drops what it does not know.
    reply = await client.request(
        f"$JS.API.{method}", json.dumps(body).encode() if body else b"", timeout=10
    )
    answer = json.loads(reply.data)
    assert "error" not in answer, answer
    return answer
