"""Parts die or stay away while a job trains: it ends once, whole, and billed for what it computed.

``LEHR_TEST_SEED`` chooses other moments.
"""

import asyncio
import time

import pytest

from lehr.api.scheduler.v1 import job_pb2
from tests.e2e.audit import ends_well, moment, part_down, trainer_of
from tests.e2e.world import World
from tests.support.stack import StackFactory, StackUnderTest

STEPS = 60
SCRIPT = {"total_steps": STEPS, "step_seconds": 0.15}
CONTROL = ("scheduler", "gpu_allocator", "checkpoint_store", "billing", "catalog")
OTHERS = ("telemetry", "gateway", "nats", "postgres", "s3")


@pytest.fixture(scope="module")
def stack(stack_factory: StackFactory) -> StackUnderTest:
    """A stack that tries again soon after a fault of its own."""
    return stack_factory(environment={"scheduler": {"SCHEDULER_BACKOFF_SECONDS": "1"}})


async def breaks_at(world: World, name: str, *, high: int = 50) -> str:
    """Launch a job and return its id at the moment at which something shall break."""
    job_id = await world.launch(SCRIPT, name=name)
    await world.reaches(job_id, moment(name, 3, high))
    return job_id


@pytest.mark.slow
@pytest.mark.parametrize("part", [*CONTROL, *OTHERS])
async def test_a_killed_part_costs_a_running_job_nothing(world: World, part: str) -> None:
    job_id = await breaks_at(world, part)

    world.stack.kill(part)

    await world.stack.wait_ready(within=90)
    await ends_well(world, job_id, steps=STEPS, runs=1)


async def test_a_job_outlives_the_agent_that_runs_it(world: World) -> None:
    job_id = await breaks_at(world, "agent", high=40)

    world.stack.kill("trainer_runner")

    await ends_well(world, job_id, steps=STEPS, runs=2)


async def test_an_agent_that_must_go_lets_its_job_save_first(world: World) -> None:
    job_id = await breaks_at(world, "leaving", high=40)
    began = time.monotonic()

    await asyncio.to_thread(world.stack.stop_part, "trainer_runner")
    left_within = time.monotonic() - began
    reached = (await world.client.jobs.get(job_id)).progress.step
    saved = max(await world.saved(job_id))
    world.stack.start_part("trainer_runner")

    # Below the supervisor's patience; nothing was killed, and so nothing is computed twice.
    assert left_within < 15
    assert saved >= reached
    await ends_well(world, job_id, steps=STEPS, runs=2)
    assert (await world.client.jobs.get(job_id)).runs[0].end_reason == "PREEMPTED"


async def test_an_idle_agent_goes_at_once(world: World) -> None:
    began = time.monotonic()

    await asyncio.to_thread(world.stack.stop_part, "trainer_runner")
    left_within = time.monotonic() - began
    world.stack.start_part("trainer_runner")

    await world.stack.wait_ready(within=60)
    assert left_within < 10


@pytest.mark.slow
async def test_a_job_outlives_its_trainer(world: World) -> None:
    job_id = await breaks_at(world, "trainer", high=40)

    (await trainer_of(world, job_id)).kill()

    await ends_well(world, job_id, steps=STEPS, runs=2)


@pytest.mark.slow
async def test_a_job_outlives_everything_at_once(world: World) -> None:
    job_id = await breaks_at(world, "everything", high=40)

    for part in (*OTHERS, *CONTROL, "trainer_runner"):
        world.stack.kill(part)

    await world.stack.wait_ready(within=120)
    await ends_well(world, job_id, steps=STEPS)


@pytest.mark.parametrize(
    ("part", "seconds"),
    [
        pytest.param("nats", 10.0, id="nats for 10 s"),
        pytest.param("nats", 60.0, id="nats for 60 s", marks=pytest.mark.slow),
        pytest.param("postgres", 20.0, id="postgres for 20 s", marks=pytest.mark.slow),
        pytest.param("s3", 20.0, id="s3 for 20 s", marks=pytest.mark.slow),
    ],
)
async def test_training_goes_on_while_a_server_is_away(
    world: World, part: str, seconds: float
) -> None:
    job_id = await breaks_at(world, f"{part} away {seconds:.0f}", high=30)
    trainer = await trainer_of(world, job_id)

    async with part_down(world, part, seconds):
        await asyncio.sleep(1)
        assert trainer.is_running()

    await ends_well(world, job_id, steps=STEPS, runs=1)


@pytest.mark.slow
async def test_parts_die_one_after_the_other(world: World) -> None:
    script = {"total_steps": 150, "step_seconds": 0.15}
    job_id = await world.launch(script, name="one after the other")

    for part in ("gpu_allocator", "nats", "scheduler", "s3", "billing", "checkpoint_store"):
        await world.reaches(job_id, 5)
        world.stack.kill(part)
        await asyncio.sleep(2)

    await world.stack.wait_ready(within=90)
    await ends_well(world, job_id, steps=150, runs=1)


@pytest.mark.slow
async def test_a_job_launched_while_nats_is_away_is_done_all_the_same(world: World) -> None:
    async with part_down(world, "nats", 10):
        job_id = await world.launch(SCRIPT, name="without nats")
        await world.until(job_id, lambda job: job.state != job_pb2.JOB_STATE_QUEUED)

    await ends_well(world, job_id, steps=STEPS, runs=1)
