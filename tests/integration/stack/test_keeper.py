"""One part is kept alive, and only as long as it is wanted."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lehr.stack.keeper import BACKOFF_SECONDS, Keeper
from lehr.stack.part import Part, PartState, PartStuck
from tests.integration.stack.children import IGNORE_TERM, SERVE, a_part

Keep = Callable[..., Keeper]


@pytest.fixture
async def keep(tmp_path: Path) -> AsyncIterator[Keep]:
    async with AsyncExitStack() as cleanup:

        def start(part: Part, **limits: float) -> Keeper:
            keeper = Keeper(
                part,
                log=tmp_path / "child.log",
                changed=lambda: None,
                backoff_seconds=(0.01, 0.02),
                **limits,
            )
            cleanup.push_async_callback(keeper.stop)
            keeper.start()
            return keeper

        yield start


async def test_a_part_is_ready_when_its_probe_is_answered(keep: Keep, tmp_path: Path) -> None:
    keeper = keep(a_part(tmp_path))
    before = keeper.state

    await _until(keeper, PartState.READY)

    assert before is PartState.STARTING
    assert keeper.restart_count == 0
    assert keeper.failure == ""


async def test_a_part_that_dies_is_started_again(keep: Keep, tmp_path: Path) -> None:
    keeper = keep(a_part(tmp_path))
    first = await _until(keeper, PartState.READY)

    os.kill(first, signal.SIGKILL)
    await _until_restarted(keeper, times=1)
    second = await _until(keeper, PartState.READY)

    assert second != first


async def test_a_killed_part_is_not_taken_for_its_successor(keep: Keep, tmp_path: Path) -> None:
    keeper = keep(a_part(tmp_path))
    await _until(keeper, PartState.READY)

    keeper.kill()

    assert keeper.state is PartState.RESTARTING


async def test_a_part_that_keeps_dying_is_never_given_up(keep: Keep, tmp_path: Path) -> None:
    keeper = keep(a_part(tmp_path, program="raise SystemExit(3)"))

    await _until_restarted(keeper, times=8)

    assert keeper.failure in {"ended with exit code 3", "has not answered yet"}


async def test_a_program_that_does_not_exist_is_tried_again(keep: Keep, tmp_path: Path) -> None:
    part = a_part(tmp_path)
    keeper = keep(
        Part(name="gone", argv=("/nowhere",), environment={}, folder=tmp_path, probe=part.probe)
    )

    await _until_restarted(keeper, times=2)

    assert "cannot be started" in keeper.failure


def test_pauses_between_restarts_grow_to_a_quarter_of_a_minute() -> None:
    assert BACKOFF_SECONDS == (1, 2, 4, 8, 15)


async def test_a_stopped_part_stays_down_until_it_is_started(keep: Keep, tmp_path: Path) -> None:
    keeper = keep(a_part(tmp_path))
    await _until(keeper, PartState.READY)

    await keeper.stop()
    stopped = keeper.state
    keeper.start()
    await _until(keeper, PartState.READY)

    assert stopped is PartState.DOWN
    assert keeper.restart_count == 0


async def test_a_part_that_ignores_the_request_is_killed(keep: Keep, tmp_path: Path) -> None:
    keeper = keep(a_part(tmp_path, program=IGNORE_TERM, stop_seconds=0.2))
    pid = await _until(keeper, PartState.READY)

    await keeper.stop()

    assert not psutil.pid_exists(pid)


async def test_what_a_dead_part_left_in_its_group_dies_too(keep: Keep, tmp_path: Path) -> None:
    program = (
        "import subprocess; child = subprocess.Popen(['sleep', '600']);"
        "open('child', 'w').write(str(child.pid));" + SERVE
    )
    keeper = keep(a_part(tmp_path, program=program))
    pid = await _until(keeper, PartState.READY)
    child = psutil.Process(int((tmp_path / "child").read_text()))

    os.kill(pid, signal.SIGKILL)
    await _until_restarted(keeper, times=1)

    assert await _is_gone(child)


async def test_a_frozen_part_is_unready_and_can_be_stopped(keep: Keep, tmp_path: Path) -> None:
    keeper = keep(a_part(tmp_path))
    pid = await _until(keeper, PartState.READY)

    keeper.pause()
    frozen = keeper.state
    await _until_true(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    await keeper.stop()

    assert frozen is PartState.UNREADY
    assert not psutil.pid_exists(pid)


async def test_a_part_that_was_frozen_is_ready_again(keep: Keep, tmp_path: Path) -> None:
    keeper = keep(a_part(tmp_path))
    first = await _until(keeper, PartState.READY)

    keeper.pause()
    keeper.resume()
    second = await _until(keeper, PartState.READY)

    assert second == first


async def test_a_part_that_stops_answering_is_unready(keep: Keep, tmp_path: Path) -> None:
    keeper = keep(a_part(tmp_path))
    await _until(keeper, PartState.READY)

    (tmp_path / "ready").unlink()
    keeper.resume()
    await _until(keeper, PartState.UNREADY)

    assert "FileNotFoundError" in keeper.failure


async def test_a_part_that_lives_and_never_answers_is_started_anew(
    keep: Keep, tmp_path: Path
) -> None:
    keeper = keep(a_part(tmp_path), silent_seconds=0.5)
    first = await _until(keeper, PartState.READY)

    (tmp_path / "ready").unlink()
    keeper.resume()
    await _until_restarted(keeper, times=1)
    second = await _until(keeper, PartState.READY)

    assert second != first
    assert not psutil.pid_exists(first)


async def test_a_part_that_answers_that_it_cannot_serve_is_left_alone(
    keep: Keep, tmp_path: Path
) -> None:
    first = await _stays_with(
        keep, replace(a_part(tmp_path), probe=_raising(ValueError("waits for another")))
    )

    assert psutil.pid_exists(first)


async def test_a_part_that_was_frozen_on_request_is_left_alone(keep: Keep, tmp_path: Path) -> None:
    keeper = keep(a_part(tmp_path), silent_seconds=0.2)
    first = await _until(keeper, PartState.READY)

    keeper.pause()
    (tmp_path / "ready").unlink()
    keeper._probe_now.set()
    await asyncio.sleep(1.0)
    (tmp_path / "ready").touch()
    keeper.resume()

    assert await _until(keeper, PartState.READY) == first


async def test_a_part_that_is_stuck_is_started_anew_at_once(keep: Keep, tmp_path: Path) -> None:
    keeper = keep(replace(a_part(tmp_path), probe=_raising(PartStuck("writes no more"))))

    await _until_restarted(keeper, times=2)

    assert "writes no more" in keeper.failure or keeper.failure == "has not answered yet"


def _raising(error: Exception) -> Callable[[], Awaitable[None]]:
    async def probe() -> None:
        raise error

    return probe


async def _stays_with(keep: Keep, part: Part) -> int:
    """Keep a part for much longer than it may be silent, and return its one process."""
    keeper = keep(part, silent_seconds=0.2)
    await _until_true(lambda: keeper.pid is not None)
    pid = keeper.pid or 0
    await asyncio.sleep(1.0)
    assert (keeper.pid, keeper.restart_count) == (pid, 0)
    return pid


async def _until(keeper: Keeper, state: PartState) -> int:
    await _until_true(lambda: keeper.state is state)
    return keeper.pid or 0


async def _until_restarted(keeper: Keeper, *, times: int) -> None:
    await _until_true(lambda: keeper.restart_count >= times)


async def _until_true(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not claim():
            await asyncio.sleep(0.01)


async def _is_gone(process: psutil.Process) -> bool:
    gone, _ = await asyncio.to_thread(psutil.wait_procs, [process], 10)
    return bool(gone)
