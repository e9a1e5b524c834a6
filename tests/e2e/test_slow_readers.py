"""Readers that are slow, asleep or gone, and a telemetry that is away: training does not notice."""

import asyncio
import base64
import statistics
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from lehr.api.scheduler.v1 import job_pb2
from lehr.errors import PlatformError
from lehr.stack import Node
from tests.e2e.audit import ends_well, part_down
from tests.e2e.world import World, eventually
from tests.support.stack import StackFactory, StackUnderTest

STEPS, STEP_SECONDS = 100, 0.1
LINE = 4000
SLOW_READERS = 10
NAP_SECONDS = 0.5


@pytest.fixture(scope="module")
def stack(stack_factory: StackFactory) -> StackUnderTest:
    """A node that trains two jobs at once."""
    return stack_factory(nodes=(Node(name="local", cpu_slots=2),))


def talkative() -> dict[str, Any]:
    """Return a script that prints more than a connection holds for a reader who sleeps."""
    return {
        "total_steps": STEPS,
        "step_seconds": STEP_SECONDS,
        "steps": {
            step: {"print_bytes_base64": base64.b64encode(printed(step).encode() + b"\n").decode()}
            for step in range(1, STEPS + 1)
        },
    }


def printed(step: int) -> str:
    """Return what is printed before a step."""
    return f"line {step} ".ljust(LINE, "x")


async def printed_in(lines: AsyncIterator[Any]) -> list[str]:
    """Read a log until what the last step printed, and return what steps printed."""
    found: list[str] = []
    async for line in lines:
        if line.text.startswith("line "):
            found.append(line.text)
        if line.text.startswith(f"line {STEPS} "):
            break
    return found


async def reads_slowly(stream: AsyncIterator[Any]) -> None:
    """Read and sleep by turns, until cancelled or the end."""
    async for _ in stream:
        await asyncio.sleep(NAP_SECONDS)


async def step_seconds(world: World, job_id: str) -> float:
    """Return the median time between two steps, as the trainer's own reports have it."""
    points = await world.client.jobs.metrics(job_id, names=["loss"])
    times = [point.time.ToDatetime() for point in points]
    return statistics.median((after - before).total_seconds() for before, after in pairwise(times))


async def test_readers_slow_no_step_and_miss_nothing(world: World) -> None:
    watched = await world.launch(talkative(), name="watched")
    alone = await world.launch(talkative(), name="alone")
    await asyncio.gather(*(world.reaches(job_id, 1) for job_id in (watched, alone)))
    jobs = world.client.jobs
    ways = [jobs.watch_logs, jobs.watch_metrics] * (SLOW_READERS // 2)
    slow = [asyncio.create_task(reads_slowly(watch(watched))) for watch in ways]
    asleep, gone = jobs.watch_logs(watched), jobs.watch_logs(watched)
    first = await anext(asleep)
    await anext(gone)
    await gone.aclose()

    for job_id in (watched, alone):
        assert (await world.rests(job_id)).state == job_pb2.JOB_STATE_SUCCEEDED
        await world.has_steps(job_id, STEPS)
    still_reading = [task for task in slow if not task.done()]
    with_readers, without = [await step_seconds(world, one) for one in (watched, alone)]
    async with asyncio.timeout(60):
        after = await printed_in(asleep)
    for task in slow:
        task.cancel()

    assert len(still_reading) == SLOW_READERS
    assert with_readers < without * 1.25 + 0.02
    assert not first.text.startswith("line ")
    assert after == [printed(step) for step in range(1, STEPS + 1)]
    await world.proves_clean()


@pytest.mark.slow
async def test_training_goes_on_while_telemetry_is_away_and_its_reader_comes_back(
    world: World,
) -> None:
    job_id = await world.launch(talkative(), name="unseen")
    await world.reaches(job_id, 5)
    seen: list[Any] = []
    reading = asyncio.create_task(reads_into(seen, world.client.jobs.watch_logs(job_id)))
    await eventually(lambda: has_printed(seen))

    async with part_down(world, "telemetry", 1):
        before = (await world.client.jobs.get(job_id)).progress.step
        await world.until(job_id, lambda job: job.progress.step >= before + 30)
    with pytest.raises(PlatformError):
        await reading

    async def look() -> list[str]:
        async with asyncio.timeout(60):
            lines = world.client.jobs.watch_logs(job_id, after_cursor=seen[-1].cursor)
            return await printed_in(lines)

    later = await eventually(look)
    earlier = [line.text for line in seen if line.text.startswith("line ")]
    assert [*earlier, *later] == [printed(step) for step in range(1, STEPS + 1)]
    await ends_well(world, job_id, steps=STEPS, runs=1)


async def reads_into(seen: list[Any], lines: AsyncIterator[Any]) -> None:
    """Keep what is read until the stream breaks."""
    async for line in lines:
        seen.append(line)


async def has_printed(seen: list[Any]) -> bool | None:
    """Tell whether something that a step printed has been read."""
    return True if any(line.text.startswith("line ") for line in seen) else None
