"""ST-05 of the requirements: a stop around the final step, again and again; one end each time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as gpu_pb
from lehr.api.scheduler.v1 import job_pb2
from lehr.client import AsyncClient
from lehr.stack import Node
from lehr.training.progress import read_progress
from tests.e2e.audit import (
    SEED,
    has_whole_checkpoints,
    holds_nothing,
    is_billed_by_its_leases,
    is_finished_once,
    leases_of,
)
from tests.e2e.world import World, eventually
from tests.support.stack import StackFactory, StackUnderTest

AT_A_TIME = 4
STEPS = 3
STEP_SECONDS = 1.0
SCRIPT = {"total_steps": STEPS, "step_seconds": STEP_SECONDS}
SUCCEEDED, STOPPED = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_STOPPED


@pytest.fixture(scope="module")
def stack(stack_factory: StackFactory) -> StackUnderTest:
    """One node that computes several jobs at a time."""
    return stack_factory(nodes=(Node(name="wide", cpu_slots=AT_A_TIME),))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rounds", [8, pytest.param(200, marks=pytest.mark.slow)])
async def test_a_stop_around_the_final_step_has_one_winner(world: World, rounds: int) -> None:
    source = random.Random(f"{SEED} {rounds}")  # noqa: S311 - repeatable
    made = await world.client.keys.create("second user", tenant="default", role="admin")
    ends: Counter[int] = Counter()
    async with AsyncClient(world.stack.status().gateway, made.secret) as client:
        second = World(stack=world.stack, client=client)
        for _ in range(0, rounds, AT_A_TIME):
            # A node hears of a stop within two seconds, so one stop in four is sent that early.
            delays = [source.uniform(-0.05, 0.05) for _ in range(AT_A_TIME - 1)]
            delays.append(source.uniform(-2.0, -0.05))
            ends.update(await asyncio.gather(*(one_round(world, second, it) for it in delays)))
            await holds_nothing(world)

    assert sum(ends.values()) >= rounds
    assert set(ends) <= {SUCCEEDED, STOPPED}
    # Else nothing was decided by the stops.
    assert rounds < 50 or min(ends[SUCCEEDED], ends[STOPPED]) > 0, ends
    await world.proves_clean()


async def one_round(world: World, second: World, delay: float) -> int:
    """Stop a job by two users at once around its final step; prove its end and return it."""
    job_id = await world.launch(SCRIPT, name="raced")
    await until_final_step(world, job_id, delay)
    answers = await asyncio.gather(*(way.client.jobs.stop(job_id) for way in (world, second)))
    job = await world.rests(job_id)

    assert {one.job_id for one in answers} == {job_id}
    saved = await world.client.checkpoints.list(job_id)
    finals = [one.step for one in saved if one.is_final]
    if job.state == SUCCEEDED:
        assert (job.end_reason, job.progress.step, finals) == ("COMPLETED", STEPS, [STEPS])
    else:
        assert (job.state, job.end_reason, finals) == (STOPPED, "USER_STOPPED", [])
        assert [one.step for one in saved if one.is_resumable][-1:] == [job.progress.step]
    await is_finished_once(world, job_id)
    await has_whole_checkpoints(world, job_id)
    await is_billed_by_its_leases(world, job_id)
    [lease] = await leases_of(world, job_id)
    assert lease.phase == gpu_pb.LEASE_PHASE_CLOSED
    # Once more, after the end: the answer says what it is, and nothing changes.
    late = await world.client.jobs.stop(job_id)
    assert (late.state, late.version, late.end_reason) == (job.state, job.version, job.end_reason)
    if job.state == STOPPED:
        await goes_on_to_the_end(world, job_id)
    return int(job.state)


async def until_final_step(world: World, job_id: str, delay: float) -> None:
    """Wait until the final step is done, and so many seconds more or less."""

    async def look() -> float | None:
        runs = (await world.client.jobs.get(job_id)).runs
        paths = world.stack.folder.rglob(f"{runs[-1].run_id}/progress") if runs else []
        return max((read_progress(path).running_began for path in paths), default=0.0) or None

    began: float = await eventually(look)
    # What the trainer stamps and what the loop counts is the same clock.
    left = began + STEPS * STEP_SECONDS + delay - asyncio.get_running_loop().time()
    assert left > 0, "the machine was so slow that the final step is past already"
    await asyncio.sleep(left)


async def goes_on_to_the_end(world: World, job_id: str) -> None:
    """Resume a stopped job: its last checkpoint is good."""
    await world.client.jobs.resume(job_id)
    job = await world.rests(job_id)
    assert job.state == SUCCEEDED
    await world.has_steps(job_id, STEPS)
    await is_finished_once(world, job_id, stops=1)
