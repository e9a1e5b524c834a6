"""Streams: everything that is there, then everything as it comes; readers hold nobody up."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from lehr.api.telemetry.v1 import telemetry_pb2 as pb
from lehr.api.telemetry.v1.telemetry_pb2_grpc import TelemetryServiceStub
from tests.integration.telemetry.story import Story
from tests.support.servers import PostgresForTests


async def take(stream: Any, count: int) -> list[Any]:
    """Read points or lines off a stream until there are so many."""
    taken: list[Any] = []
    async with asyncio.timeout(20):
        async for response in stream:
            taken += getattr(response, "points", None) or response.lines
            if len(taken) >= count:
                return taken
    raise AssertionError("the stream has ended")


def watch(story: Story, *names: str, after_step: int = -1) -> Any:
    """Watch points."""
    return story.person.WatchMetrics(
        pb.WatchMetricsRequest(job_id=story.job_id, names=names, after_step=after_step)
    )


async def lines_of(story: Story) -> AsyncGenerator[str, None]:
    """Watch lines from the beginning."""
    async for response in story.person.WatchLogs(pb.WatchLogsRequest(job_id=story.job_id)):
        for line in response.lines:
            yield line.text


async def test_a_watcher_sees_what_is_there_and_then_what_comes(story: Story) -> None:
    await story.open()
    await story.say(story.losses([1, 2]))
    await story.stored(reports=2)
    stream = watch(story)
    first = await take(stream, 2)

    await story.say(story.evaluated(3, 1, 1.5), story.losses([3], first=4))
    then = await take(stream, 2)

    assert [(point.step, point.name) for point in first] == [(1, "loss"), (2, "loss")]
    assert sorted((point.step, point.name) for point in then) == [(1, "eval_loss"), (3, "loss")]
    stream.cancel()


async def test_a_watcher_may_come_before_the_job_is_known(story: Story) -> None:
    stream = watch(story, "loss", after_step=1)
    reading = asyncio.create_task(take(stream, 2))
    await story.open()
    await story.say(story.losses([1, 2, 3]), story.evaluated(4, 3, 1.0))

    assert [point.step for point in await reading] == [2, 3]
    stream.cancel()


async def test_a_watcher_sees_the_steps_of_a_resumed_run_again(story: Story) -> None:
    await story.open()
    await story.say(story.losses([1, 2, 3]))
    stream = watch(story)
    await take(stream, 3)
    await story.open(epoch=2, resume_step=1)

    await story.say(story.losses([2, 3], first=1, epoch=2))

    assert [(point.step, point.epoch) for point in await take(stream, 2)] == [(2, 2), (3, 2)]
    stream.cancel()


async def test_lines_come_in_order_and_without_a_gap(story: Story) -> None:
    await story.open()
    stream = lines_of(story)
    expected = [f"line {number}" for number in range(1, 201)]
    batches = [story.logged(first + 1, expected[first : first + 10]) for first in range(0, 200, 10)]

    saying = asyncio.create_task(story.say(*batches[1::2], *batches[::2]))
    async with asyncio.timeout(30):
        seen = [await anext(stream) for _ in expected]

    await saying
    assert seen == expected
    await stream.aclose()


async def test_readers_that_do_not_read_hold_nobody_up(story: Story) -> None:
    await story.open()
    idle = [story.person.WatchLogs(pb.WatchLogsRequest(job_id=story.job_id)) for _ in range(10)]
    big = ["x" * 200_000 for _ in range(4)]
    for first in range(1, 81, 4):
        await story.say(story.logged(first, big))

    await story.stored(lines=80)
    await story.say(story.losses([1]))
    await story.stored(reports=1)

    assert len(await take(idle[0], 80)) == 80
    for stream in idle:
        stream.cancel()


async def test_a_watch_goes_on_after_an_outage_of_the_database(
    story: Story, postgres_server: PostgresForTests
) -> None:
    await story.open()
    await story.say(story.losses([1]))
    stream = watch(story)
    await take(stream, 1)
    postgres_server.control.stop()
    postgres_server.control.start()

    await story.say(story.losses([2]))

    assert [point.step for point in await take(stream, 1)] == [2]
    stream.cancel()


@pytest.mark.parametrize("method", ["WatchMetrics", "WatchLogs"])
async def test_another_tenant_watches_nothing(story: Story, method: str) -> None:
    await story.open()
    await story.say(story.losses([1]), story.logged(1, ["secret"]))
    await story.stored(reports=1, lines=1)
    async with story.service.called_by("gateway", tenant="other") as channel:
        stream = getattr(TelemetryServiceStub(channel), method)(
            getattr(pb, f"{method}Request")(job_id=story.job_id)
        )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(aiter(stream)), timeout=2)
