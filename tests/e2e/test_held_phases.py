"""A job is stopped while its start is held open, or its trainer hangs: nothing is left of it."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lehr import faults
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as gpu_pb
from lehr.api.scheduler.v1 import job_pb2
from tests.e2e.audit import (
    ends_well,
    has_whole_checkpoints,
    holds_nothing,
    is_billed_by_its_leases,
    is_finished_once,
    leases_of,
)
from tests.e2e.broker import connected, digested, listening, tell_again
from tests.e2e.inventory import trainers_of
from tests.e2e.world import World, eventually
from tests.support.stack import StackFactory, StackUnderTest

HELD_SECONDS = 4.0
SILENT_SECONDS = 9.0
STOPPED_WITHIN = 30.0
STALL_SECONDS = 4
FAULTS_MAX = 1
SLOW = {"total_steps": 600, "step_seconds": 0.1}
QUICK = {"total_steps": 2}
LATE = {**SLOW, "start_seconds": 5, "save_seconds": 3}
LEASE_DURABLES = (("LEASES", "scheduler-lease"), ("LEASES", "billing-lease"))


@pytest.fixture(scope="module")
def stack(stack_factory: StackFactory) -> StackUnderTest:
    """One slot; what does not move for seconds hangs, and one fault is borne."""
    return stack_factory(
        environment={
            "scheduler": {
                "SCHEDULER_BACKOFF_SECONDS": "0.5",
                "SCHEDULER_FAULTS_MAX": str(FAULTS_MAX),
            },
            "trainer_runner": {"TRAINER_RUNNER_STALL_TIMEOUT": str(STALL_SECONDS)},
        }
    )


@pytest.fixture
def plan(stack: StackUnderTest) -> Iterator[Path]:
    """The file that arms fault points; disarmed afterwards."""
    file = stack.stack.layout.faults
    faults.disarm(file)
    yield file
    faults.disarm(file)


async def struck(plan: Path, point: str) -> None:
    """Wait until a process is held at a fault point."""

    async def look() -> bool | None:
        return True if faults.fired(plan, point) else None

    await eventually(look)


async def is_stopped_for_nothing(world: World, job_id: str, next_id: str) -> None:
    """Stop a job that another one waits behind, and prove that the stop left nothing behind."""
    began = time.monotonic()
    await world.client.jobs.stop(job_id)
    cost = await world.client.jobs.cost(job_id)
    job = await world.rests(job_id, within=STOPPED_WITHIN)
    await eventually(lambda: no_trainer(world, job_id), within=STOPPED_WITHIN)
    took = time.monotonic() - began
    after = await world.rests(next_id)

    assert (job.state, job.end_reason) == (job_pb2.JOB_STATE_STOPPED, "USER_STOPPED")
    assert took < STOPPED_WITHIN
    assert not job.HasField("start_time")
    assert after.state == job_pb2.JOB_STATE_SUCCEEDED
    await holds_nothing(world)
    settled = await world.settled(job_id)
    assert (cost.total.micros, settled.total.micros, settled.billed_seconds) == (0, 0, 0)
    assert (await world.client.jobs.get(job_id)).version == job.version
    await world.proves_clean()


async def no_trainer(world: World, job_id: str) -> bool | None:
    """Tell whether no process of a job lives."""
    own = {lease.lease_id for lease in await leases_of(world, job_id)}
    alive = set(trainers_of(world).values())
    return None if own & alive else True


async def test_a_stop_right_after_the_launch_leaves_nothing(world: World) -> None:
    job_id = await world.launch(SLOW, name="at once")
    next_id = await world.launch(QUICK, name="next")

    await is_stopped_for_nothing(world, job_id, next_id)


@pytest.mark.parametrize(
    "point",
    [
        "gpu_allocator.acquire.before_commit",
        "scheduler.place.after_acquire",
        "trainer_runner.spawned",
        pytest.param("trainer_runner.epoch_journaled", marks=pytest.mark.slow),
        pytest.param("gpu_allocator.acquire.after_commit", marks=pytest.mark.slow),
        pytest.param("scheduler.advance.before_commit", marks=pytest.mark.slow),
        pytest.param("gpu_allocator.sync_node.before_commit", marks=pytest.mark.slow),
        pytest.param("gpu_allocator.sync_node.after_commit", marks=pytest.mark.slow),
    ],
)
async def test_a_stop_while_the_start_is_held_open_leaves_nothing(
    world: World, plan: Path, point: str
) -> None:
    # A node speaks every two seconds anyway; of that point it is the first with this job in it.
    if point.startswith("gpu_allocator.sync_node"):
        job_id = await world.launch({**SLOW, "start_seconds": 60}, name=point)
        await eventually(lambda: is_preparing(world, job_id))
        faults.arm(plan, point, action="delay", seconds=HELD_SECONDS)
    else:
        faults.arm(plan, point, action="delay", seconds=HELD_SECONDS)
        job_id = await world.launch({**SLOW, "start_seconds": 60}, name=point)
    next_id = await world.launch(QUICK, name="next")
    await struck(plan, point)

    await is_stopped_for_nothing(world, job_id, next_id)


async def test_a_stop_while_the_model_loads_leaves_nothing(world: World) -> None:
    # Plans are made before: they read the rows that S3 holds.
    loading = await world.client.jobs.plan(world.spec(SLOW, name="loading"))
    following = await world.client.jobs.plan(world.spec(QUICK, name="next"))
    world.stack.pause("s3")
    try:
        job_id = await world.launch_planned(loading.plan_digest)
        next_id = await world.launch_planned(following.plan_digest)
        await eventually(lambda: is_preparing(world, job_id))
        await asyncio.sleep(1)
        stopping = await world.client.jobs.stop(job_id)
        stopped = await world.rests(job_id, within=STOPPED_WITHIN)
    finally:
        world.stack.resume("s3")

    assert stopping.state == job_pb2.JOB_STATE_STOPPING
    assert stopped.state == job_pb2.JOB_STATE_STOPPED
    await is_stopped_for_nothing(world, job_id, next_id)


async def is_preparing(world: World, job_id: str) -> bool | None:
    """Tell whether a node has taken a job and not begun to compute."""
    leases = await leases_of(world, job_id)
    phases = [lease.phase for lease in leases]
    return True if phases == [gpu_pb.LEASE_PHASE_STARTING] else None


async def test_word_of_a_start_that_comes_after_the_stop_revives_nothing(
    world: World, plan: Path
) -> None:
    async with listening(world, "evt.lease.>") as told:
        job_id = await world.launch(LATE, name="late word")
        await eventually(lambda: is_preparing(world, job_id))
        faults.arm(plan, "trainer_runner.before_sync", action="delay", seconds=SILENT_SECONDS)
        await struck(plan, "trainer_runner.before_sync")
        stopped = await world.client.jobs.stop(job_id)
        states = [job.state async for job in world.client.jobs.watch(job_id)]
        job = await world.client.jobs.get(job_id)
        cost = await world.settled(job_id)
        [lease] = await leases_of(world, job_id)

        # Its trainer computed before it could hear of the stop, and said so.
        assert lease.HasField("running_time")
        assert lease.running_time.ToDatetime() > stopped.stop_time.ToDatetime()
        assert states[-1] == job_pb2.JOB_STATE_STOPPED
        assert set(states) <= {job_pb2.JOB_STATE_STOPPING, job_pb2.JOB_STATE_STOPPED}
        assert cost.billed_seconds == 0

        said = told.of(lease.lease_id)
        phases = {json.loads(message.data)["data"]["lease"]["phase"] for message in said}
        assert phases >= {"GRANTED", "STARTING", "RUNNING", "CLOSED"}
        async with connected(world) as client:
            await tell_again(client, *reversed(said))
    await digested(world, *LEASE_DURABLES)
    after = await world.client.jobs.get(job_id)
    assert (after.state, after.version) == (job.state, job.version)
    assert (await world.client.jobs.cost(job_id)).total == cost.total
    await eventually(lambda: no_trainer(world, job_id))
    await holds_nothing(world)
    await is_finished_once(world, job_id)
    await world.proves_clean()


async def test_a_trainer_that_hangs_is_ended_and_its_job_goes_on(world: World, plan: Path) -> None:
    faults.arm(plan, "trainer.save.before", action="hang", skip=2)
    job_id = await world.launch({"total_steps": 40, "step_seconds": 0.1}, name="hangs once")
    await struck(plan, "trainer.save.before")
    hung = time.monotonic()

    job = await world.until(job_id, lambda job: len(job.runs) == 2)
    noticed = time.monotonic() - hung
    faults.disarm(plan)

    assert STALL_SECONDS - 1 < noticed < 300
    assert job.runs[0].end_reason == "PLATFORM_FAULT"
    assert "did not move" in job.runs[0].end_message
    await ended_at_the_last_proof_of_life(world, job_id)
    await ends_well(world, job_id, steps=40, runs=2)
    assert "Resuming from the checkpoint of step 20" in await world.log(job_id)


@pytest.mark.slow
async def test_a_trainer_that_hangs_at_each_try_is_given_up_by_name(world: World) -> None:
    script = {"total_steps": 40, "step_seconds": 0.1, "steps": {15: {"die": "hang"}}}

    job_id = await world.launch(script, name="hangs always")
    job = await world.rests(job_id)

    assert (job.state, job.end_reason) == (job_pb2.JOB_STATE_FAILED, "PLATFORM_FAULT")
    assert len(job.runs) == 1 + FAULTS_MAX
    assert "did not move" in job.state_message
    await ended_at_the_last_proof_of_life(world, job_id)
    await eventually(lambda: no_trainer(world, job_id))
    await holds_nothing(world)
    await is_billed_by_its_leases(world, job_id)
    await has_whole_checkpoints(world, job_id)
    await world.proves_clean()


async def ended_at_the_last_proof_of_life(world: World, job_id: str) -> None:
    """Compare when a hanging run ended with when that was noticed."""
    lease = (await leases_of(world, job_id))[0]
    noticed = lease.close_time.ToDatetime() - lease.end_time.ToDatetime()
    assert noticed.total_seconds() > STALL_SECONDS - 1
    assert lease.end_time.ToDatetime() > lease.running_time.ToDatetime()
