"""Streams and requests through the gateway: no longer than their key, no more and no larger."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from lehr.api.gateway.v1 import gateway_pb2 as pb
from lehr.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from lehr.client import AsyncClient
from lehr.errors import InvalidArgument, PlatformError, ResourceExhausted, Unauthenticated
from lehr.rpc.client import raises_platform_errors, stream_of
from lehr.stack.ports import LOOPBACK
from tests.integration.catalog.test_datasets import chat, write
from tests.support.doors import FIRST_KEY, a_client
from tests.support.one_service import OneService

STREAMS_PER_KEY = 100
"""The gateway's default."""


def watch(channel: grpc.aio.Channel, key: str = FIRST_KEY, **fields: Any) -> Any:
    """Open a stream of events."""
    request = pb.WatchEventsRequest(**fields)
    metadata = (("authorization", f"Bearer {key}"),)
    return GatewayServiceStub(channel).WatchEvents(request, metadata=metadata)


async def first_of(call: Any) -> Any:
    """Return what a stream answers first, or raise what it was refused with."""
    async with asyncio.timeout(20):
        async for answer in stream_of(call):
            return answer
    raise AssertionError("the stream ended")


async def refusal_of(call: Any, *, within: float = 20.0) -> PlatformError | None:
    """Return what a stream is refused with, or None if it goes on."""
    try:
        async with asyncio.timeout(within):
            async for _ in stream_of(call):
                pass
    except TimeoutError:
        return None
    except PlatformError as error:
        return error
    raise AssertionError("the stream ended")


async def test_a_stream_ends_with_the_key_that_opened_it(
    gateway: OneService, client: AsyncClient
) -> None:
    revoked = await client.keys.create("revoked")
    soon = datetime.now(UTC) + timedelta(seconds=4)
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{gateway.port}") as channel:
        request = pb.CreateApiKeyRequest(name="expiring")
        request.expire_time.FromDatetime(soon)
        metadata = (("authorization", f"Bearer {FIRST_KEY}"),)
        stub = GatewayServiceStub(channel)
        expiring = await stub.CreateApiKey(request, timeout=10, metadata=metadata)
        streams = [watch(channel, made.secret) for made in (revoked, expiring)]
        kept = watch(channel)
        waiting = [asyncio.create_task(refusal_of(call)) for call in streams]
        still = asyncio.create_task(refusal_of(kept, within=10))
        await asyncio.sleep(1.5)
        assert not any(task.done() for task in waiting)

        await client.keys.revoke(revoked.key.key_id)

        for refused in await asyncio.gather(*waiting):
            assert isinstance(refused, Unauthenticated)
            assert refused.reason == "API_KEY_REFUSED"
        assert await still is None


async def test_a_key_has_only_so_many_streams_and_others_do_not_suffer(
    gateway: OneService, client: AsyncClient
) -> None:
    greedy, other = await client.keys.create("greedy"), await client.keys.create("other")
    async with AsyncExitStack() as opened:
        channel = await opened.enter_async_context(
            grpc.aio.insecure_channel(f"{LOOPBACK}:{gateway.port}")
        )
        calls = [watch(channel, greedy.secret) for _ in range(STREAMS_PER_KEY + 5)]
        refusals = await asyncio.gather(*(refusal_of(call, within=8) for call in calls))
        refused = [one for one in refusals if one is not None]

        # What is over is counted no more.
        assert await refusal_of(watch(channel, greedy.secret), within=2) is None
        async with a_client(gateway, other.secret) as someone_else:
            await someone_else.keys.whoami()

    assert len(refused) == 5
    assert {type(one) for one in refused} == {ResourceExhausted}
    assert f"{STREAMS_PER_KEY} streams in progress" in str(refused[0])
    assert refused[0].retry_in == timedelta(seconds=1)


@pytest.mark.parametrize(("seconds", "nanos"), [(2**62, 0), (-(2**62), 0), (0, -1), (0, 2**31 - 1)])
async def test_a_time_that_is_none_is_told_so(
    gateway: OneService, seconds: int, nanos: int
) -> None:
    stamp = Timestamp(seconds=seconds, nanos=nanos)
    metadata = (("authorization", f"Bearer {FIRST_KEY}"),)
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{gateway.port}") as channel:
        with pytest.raises(InvalidArgument, match="from_time must be"):
            await first_of(watch(channel, from_time=stamp))
        with pytest.raises(InvalidArgument, match="expire_time must be"), raises_platform_errors():
            await GatewayServiceStub(channel).CreateApiKey(
                pb.CreateApiKeyRequest(name="x", expire_time=stamp), timeout=10, metadata=metadata
            )


async def test_events_can_be_read_from_the_first_instant_there_is(
    gateway: OneService, client: AsyncClient, tmp_path: Path
) -> None:
    await client.datasets.upload(write(tmp_path, chat("first", "a")), name="from-the-first")
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{gateway.port}") as channel:
        year_one = Timestamp(seconds=-62_135_596_800)

        answer = await first_of(watch(channel, types=["lehr.dataset."], from_time=year_one))

    assert "lehr.dataset.added.v1" in answer.event_json


async def test_a_flood_of_words_is_refused(gateway: OneService) -> None:
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{gateway.port}") as channel:
        with pytest.raises(InvalidArgument, match="types must hold at most 100"):
            await first_of(watch(channel, types=["x"] * 101))
        with pytest.raises(ResourceExhausted, match="larger than max"):
            await first_of(watch(channel, types=["x" * 1000] * 1200))


async def test_a_member_sees_the_events_of_their_project_alone(
    gateway: OneService, client: AsyncClient, tmp_path: Path
) -> None:
    before = Timestamp()
    before.FromDatetime(datetime.now(UTC) - timedelta(seconds=1))
    keys = {
        name: (await client.keys.create(name, tenant="two-of", project=project, role=role)).secret
        for name, project, role in (
            ("a", "pa", "member"),
            ("b", "pb", "member"),
            ("admin of b", "pb", "admin"),
        )
    }
    async with a_client(gateway, keys["a"]) as one, a_client(gateway, keys["b"]) as another:
        await one.datasets.upload(write(tmp_path, chat("p", "a")), name="in-pa")
        await another.datasets.upload(write(tmp_path, chat("p", "b")), name="in-pb")

    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{gateway.port}") as channel:
        seen = {
            name: await names_seen(watch(channel, key, from_time=before))
            for name, key in keys.items()
        }

    assert seen == {"a": {"in-pa"}, "b": {"in-pb"}, "admin of b": {"in-pa", "in-pb"}}


async def names_seen(call: Any) -> set[str]:
    """Return the names of all datasets that a stream tells of within some seconds."""
    found: set[str] = set()
    try:
        async with asyncio.timeout(4):
            async for answer in stream_of(call):
                found |= {name for name in ("in-pa", "in-pb") if name in answer.event_json}
    except TimeoutError:
        return found
    raise AssertionError("the stream ended")
