"""A stop or a death while a checkpoint is written or uploaded, or while rows are evaluated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from lehr import faults
from lehr.api.scheduler.v1 import job_pb2
from lehr.demo.tiny import tiny_llama
from tests.e2e.audit import (
    ends_well,
    has_whole_checkpoints,
    is_billed_by_its_leases,
    leases_of,
)
from tests.e2e.inventory import trainers_of
from tests.e2e.world import World, eventually
from tests.support.stack import StackUnderTest

#: From the stop until what it met may go on; a node hears of a stop within two seconds.
HELD_SECONDS = 6.0
STEPS = 150
SCRIPT = {"total_steps": STEPS, "step_seconds": 0.1}
KEEPS_ALL = {"max_checkpoints": 10}
TINY: dict[str, Any] = {
    "model": "tiny",
    "dataset": "chats",
    "adapter": {"type": "lora", "lora_dropout": 0.1},
    "training": {
        "max_steps": 40,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "eval_steps": 10,
        "save_steps": 10,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
    },
    "data": {"validation_split": 0.2},
    "early_stopping": {"patience": None},
}


@pytest.fixture
def plan(stack: StackUnderTest) -> Iterator[Path]:
    """The file that arms fault points; disarmed afterwards."""
    file = stack.stack.layout.faults
    faults.disarm(file)
    yield file
    faults.disarm(file)


@dataclass
class Seen:
    """What a user saw of a job from its stop until what the stop had met was let go."""

    stopping: job_pb2.Job
    answered_after: float
    """Seconds that the stop took."""
    saved: set[int] = field(default_factory=set)
    states: set[int] = field(default_factory=set)
    billed_seconds: list[int] = field(default_factory=list)

    def up_to_stop(self, job: job_pb2.Job) -> int:
        """Return the whole seconds from the first batch until the stop."""
        stop_time = self.stopping.stop_time.ToDatetime()
        return int((stop_time - job.start_time.ToDatetime()).total_seconds())


async def is_held(world: World, plan: Path, point: str, job_id: str, *, saved: set[int]) -> None:
    """Wait until a process of the job is held at a fault point and earlier work is stored."""

    async def look() -> bool | None:
        return True if faults.fired(plan, point) else None

    async def stored() -> bool | None:
        return True if set(await world.saved(job_id)) == saved else None

    await eventually(look)
    await eventually(stored)


async def stop_and_look(world: World, job_id: str) -> Seen:
    """Stop a job, and look at it again and again while it is held."""
    began = time.monotonic()
    stopping = await world.client.jobs.stop(job_id)
    seen = Seen(stopping=stopping, answered_after=time.monotonic() - began)
    while time.monotonic() < began + HELD_SECONDS:
        seen.saved |= set(await world.saved(job_id))
        seen.billed_seconds.append((await world.client.jobs.cost(job_id)).billed_seconds)
        seen.states.add((await world.client.jobs.get(job_id)).state)
        await asyncio.sleep(0.2)
    return seen


async def is_billed_until_its_stop(world: World, job_id: str, seen: Seen) -> None:
    """Compare every reading of the bill with the instant of the stop."""
    job = await world.client.jobs.get(job_id)
    cost = await world.settled(job_id)
    seconds = seen.up_to_stop(job)
    assert job.stop_time == seen.stopping.stop_time
    assert seen.billed_seconds == sorted(seen.billed_seconds)
    assert (seen.billed_seconds[-1], cost.billed_seconds) == (seconds, seconds)
    await asyncio.sleep(2)
    assert (await world.client.jobs.cost(job_id)).total == cost.total
    await is_billed_by_its_leases(world, job_id)


@pytest.mark.parametrize(
    ("point", "skip"),
    [
        # Of steps 10 and 20 the second; of evaluations the third, for the base model has one too.
        ("trainer.save.half_weights", 1),
        ("trainer.evaluate.batch", 2),
        pytest.param("trainer_runner.upload.begun", 1, marks=pytest.mark.slow),
        ("trainer_runner.upload.put", 1),
    ],
)
async def test_a_stop_is_answered_at_once_and_bills_nothing_of_what_it_meets(
    world: World, plan: Path, point: str, skip: int
) -> None:
    faults.arm(plan, point, action="hang", skip=skip)
    job_id = await world.launch(SCRIPT, name=point, checkpoints=KEEPS_ALL)
    await is_held(world, plan, point, job_id, saved={10})

    seen = await stop_and_look(world, job_id)
    faults.disarm(plan)
    job = await world.rests(job_id)

    # What is held goes on at our word alone, so everything before it was answered meanwhile.
    assert seen.answered_after < HELD_SECONDS
    assert seen.stopping.state == job_pb2.JOB_STATE_STOPPING
    assert seen.states == {job_pb2.JOB_STATE_STOPPING}
    assert seen.saved == {10}
    assert (job.state, job.end_reason) == (job_pb2.JOB_STATE_STOPPED, "USER_STOPPED")
    await is_billed_until_its_stop(world, job_id, seen)
    # What had been computed before the stop is kept.
    assert {10, 20, job.progress.step} <= set(await world.saved(job_id))
    await has_whole_checkpoints(world, job_id)
    # What an evaluation measures after the stop is paid for by nobody, so it is left to the resume.
    was_evaluated = 20 in await world.steps(job_id, "eval_loss")
    assert was_evaluated is (point != "trainer.evaluate.batch")

    await world.client.jobs.resume(job_id)
    await ends_well(world, job_id, steps=STEPS, runs=2, stops=1)
    assert f"Resuming from the checkpoint of step {job.progress.step}" in await world.log(job_id)


async def test_a_trainer_killed_in_the_save_that_a_stop_met_leaves_the_checkpoint_before(
    world: World, plan: Path
) -> None:
    point = "trainer.save.half_weights"
    faults.arm(plan, point, action="hang", skip=1)
    job_id = await world.launch(SCRIPT, name="killed", checkpoints=KEEPS_ALL)
    await is_held(world, plan, point, job_id, saved={10})

    seen = await stop_and_look(world, job_id)
    await kill_trainer(world, job_id)
    job = await world.rests(job_id)
    cost = await world.settled(job_id)

    assert (job.state, job.end_reason) == (job_pb2.JOB_STATE_STOPPED, "USER_STOPPED")
    assert seen.saved == set(await world.saved(job_id)) == {10}
    assert cost.billed_seconds <= seen.up_to_stop(job)
    faults.disarm(plan)
    await world.client.jobs.resume(job_id)
    await ends_well(world, job_id, steps=STEPS, runs=2, stops=1)
    assert "Resuming from the checkpoint of step 10" in await world.log(job_id)


async def kill_trainer(world: World, job_id: str) -> None:
    """Kill the processes of a job's newest lease without warning."""
    lease_id = (await leases_of(world, job_id))[-1].lease_id
    found = [pid for pid, owner in trainers_of(world).items() if owner == lease_id]
    assert found
    for pid in found:
        psutil.Process(pid).kill()


@pytest.mark.slow
@pytest.mark.train
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(900)
async def test_a_real_run_stopped_or_killed_within_a_save_or_an_evaluation_goes_on_to_the_bit(
    world: World, plan: Path, tmp_path: Path
) -> None:
    await world.client.models.add(tiny_llama(tmp_path), name="tiny", license="Apache-2.0")
    straight = await series(world, await world.launch_real(TINY))

    # Weights of step 20 are on the disk, its optimizer state is not.
    killed = await real_and_held(world, plan, "trainer.save.weights", skip=1)
    await kill_trainer(world, killed)
    await world.until(killed, lambda job: len(job.runs) == 2)
    faults.disarm(plan)
    assert await series(world, killed) == straight
    assert "Resuming from the checkpoint of step 10" in await world.log(killed)
    # Eight rows of the base model, eight of step 10, and some of step 20.
    for point, skip in (("trainer.save.weights", 1), ("trainer.evaluate.batch", 19)):
        stopped = await real_and_held(world, plan, point, skip=skip)
        seen = await stop_and_look(world, stopped)
        faults.disarm(plan)
        await world.rests(stopped)
        assert seen.saved == {10}
        assert set(await world.saved(stopped)) == {10, 20}
        await is_billed_until_its_stop(world, stopped, seen)
        await world.client.jobs.resume(stopped)
        assert await series(world, stopped) == straight
    await world.proves_clean()


async def real_and_held(world: World, plan: Path, point: str, *, skip: int) -> str:
    """Launch a job that really trains and wait until it is held, step 10 being stored."""
    faults.arm(plan, point, action="hang", skip=skip)
    job_id = await world.launch_real({**TINY, "checkpoints": KEEPS_ALL})
    await is_held(world, plan, point, job_id, saved={10})
    return job_id


async def series(world: World, job_id: str) -> tuple[dict[int, str], dict[int, str]]:
    """Return training and validation losses of a finished job, all digits of them, by step."""
    job = await world.rests(job_id, within=300)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, f"{job.end_reason}: {job.state_message}"
    losses = await world.has_steps(job_id, job.progress.total_steps)

    async def evaluated() -> dict[int, str] | None:
        found = await world.steps(job_id, "eval_loss")
        return found if sorted(found) == [0, 10, 20, 30, 40] else None

    return losses, await eventually(evaluated)
