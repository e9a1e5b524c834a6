"""Loops and the pauses between their rounds."""

import asyncio
from datetime import timedelta

import pytest

from lehr.process import Loop
from lehr.process.loops import pause_after

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("failures", "every", "seconds"),
    [
        (0, 5, 5),
        (1, 0.1, 1),
        (2, 0.1, 2),
        (5, 0.1, 16),
        (7, 0.1, 60),
        (10_000, 0.1, 60),
        (1, 30, 30),
        (3, 300, 300),
    ],
)
def test_pauses_double_with_each_failure_and_never_undercut_the_usual(
    failures: int, every: float, seconds: float
) -> None:
    pause = pause_after(failures, every=timedelta(seconds=every))

    assert pause == timedelta(seconds=seconds)


async def rounds_of(loop: Loop, counter: list[int], count: int) -> None:
    task = asyncio.create_task(loop.run())
    async with asyncio.timeout(30):
        while len(counter) < count:
            await asyncio.sleep(0)
            loop.wake()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_waking_starts_the_next_round_at_once() -> None:
    rounds: list[int] = []

    async def note() -> None:
        rounds.append(1)

    await rounds_of(Loop("note", note, every=HOUR), rounds, 5)

    assert len(rounds) >= 5


async def test_two_rounds_never_overlap() -> None:
    rounds: list[int] = []
    running: list[int] = []

    async def note() -> None:
        assert not running
        running.append(1)
        await asyncio.sleep(0.001)
        running.pop()
        rounds.append(1)

    await rounds_of(Loop("note", note, every=HOUR), rounds, 5)

    assert len(rounds) >= 5
