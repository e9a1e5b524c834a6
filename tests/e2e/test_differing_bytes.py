"""Bytes that are not what was promised: on their way into the store, and on their way out of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lehr import faults
from lehr.api.scheduler.v1 import job_pb2
from lehr.objects import ObjectStore
from tests.e2e.audit import (
    TENANT,
    ends_well,
    has_whole_checkpoints,
    holds_nothing,
    is_billed_by_its_leases,
    leases_of,
)
from tests.e2e.world import World, eventually, write_chats
from tests.support.stack import StackFactory, StackUnderTest

PUT = "trainer_runner.upload.put"
TRIES = 3
SCRIPT = {"total_steps": 30, "step_seconds": 0.1}
QUICK = {"total_steps": 10}
LONG = {"total_steps": 600, "step_seconds": 0.1}


@pytest.fixture(scope="module")
def stack(stack_factory: StackFactory) -> StackUnderTest:
    """One slot; one fault is borne, and before a resume sizes alone are looked at."""
    return stack_factory(
        environment={
            "scheduler": {"SCHEDULER_BACKOFF_SECONDS": "0.5", "SCHEDULER_FAULTS_MAX": "1"},
            "checkpoint_store": {"CHECKPOINT_STORE_RESUME_HASH_BYTES_MAX": "0"},
        }
    )


@pytest.fixture
def plan(stack: StackUnderTest) -> Iterator[Path]:
    """The file that arms fault points; disarmed afterwards."""
    file = stack.stack.layout.faults
    faults.disarm(file)
    yield file
    faults.disarm(file)


@pytest.fixture
def objects(world: World) -> ObjectStore:
    """The installation's bucket, with its own keys."""
    given = world.stack.environment
    keys = ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY", "BUCKET", "REGION")
    return ObjectStore(*(given[f"LEHR_S3_{key}"] for key in keys))


async def spoil(objects: ObjectStore, key: str) -> bytes:
    """Change one bit of an object, whose size stays; return what it was."""
    before = await objects.get_bytes(key)
    await objects.put_bytes(key, bytes([before[0] ^ 1]) + before[1:])
    return before


async def spoil_what_was_put(world: World, plan: Path, objects: ObjectStore, job_id: str) -> None:
    """Wait until an upload is complete but for its commit, and change it."""

    async def held() -> bool | None:
        return True if faults.fired(plan, PUT) else None

    await eventually(held)
    committed = {one.checkpoint_id for one in await world.client.checkpoints.list(job_id)}
    put = [one.key for one in await objects.list(f"checkpoints/{TENANT}/{job_id}/")]
    [weights] = [
        key
        for key in put
        if key.endswith("adapter_model.safetensors") and key.split("/")[-2] not in committed
    ]
    await spoil(objects, weights)


async def test_a_commit_of_bytes_that_differ_is_refused_and_they_are_sent_anew(
    world: World, plan: Path, objects: ObjectStore
) -> None:
    faults.arm(plan, PUT, action="hang")
    job_id = await world.launch(SCRIPT, name="spoilt once", checkpoints={"max_checkpoints": 9})
    await spoil_what_was_put(world, plan, objects, job_id)
    assert not await world.saved(job_id)
    faults.disarm(plan)

    await ends_well(world, job_id, steps=30, runs=1)
    told = await world.log(job_id)
    assert sorted(await world.saved(job_id)) == [10, 20, 30]
    assert "The checkpoint of step 10 is saved on the node and not yet durable" in told
    assert "The checkpoint of step 10 is stored" in told


@pytest.mark.slow
async def test_a_checkpoint_whose_bytes_differ_at_each_try_is_never_seen(
    world: World, plan: Path, objects: ObjectStore
) -> None:
    faults.arm(plan, PUT, action="hang")
    job_id = await world.launch(SCRIPT, name="spoilt thrice", checkpoints={"max_checkpoints": 9})
    for left in reversed(range(TRIES)):
        await spoil_what_was_put(world, plan, objects, job_id)
        assert not await world.saved(job_id)
        # Armed anew it lets the present try go on, and holds the next.
        faults.arm(plan, PUT, action="hang") if left else faults.disarm(plan)

    await ends_well(world, job_id, steps=30, runs=1)
    told = await world.log(job_id)
    saved = await world.saved(job_id)
    assert 10 not in saved
    assert 30 in saved
    assert "The checkpoint of step 10 could not be stored and is lost" in told


@pytest.mark.parametrize("heals", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_a_dataset_whose_bytes_differ_is_never_trained_on(
    world: World, objects: ObjectStore, tmp_path: Path, heals: bool
) -> None:
    name = f"damaged-{heals}".lower()
    rows = write_chats(tmp_path / "rows.jsonl", 42 + heals)
    dataset = (await world.client.datasets.upload(rows, name=name)).dataset
    before = await world.launch(LONG, name="before")
    await world.until(before, lambda job: job.state == job_pb2.JOB_STATE_RUNNING)
    job_id = await world.launch(QUICK, name=name, dataset=name)
    [key] = [
        one.key
        for one in await objects.list(f"datasets/{TENANT}/")
        if dataset.dataset_id in one.key and one.key.endswith("/rows.jsonl.zst")
    ]
    good = await spoil(objects, key)

    await world.client.jobs.stop(before)
    await eventually(lambda: waits(world, "rows.jsonl.zst is not what its listing says"))
    if heals:
        await objects.put_bytes(key, good)
        await ends_well(world, job_id, steps=10, runs=1)
        return
    await is_given_up(world, job_id, "rows.jsonl.zst is not what its listing says", runs=2)
    assert (await world.settled(job_id)).total.micros == 0
    await has_whole_checkpoints(world, job_id)


async def is_given_up(world: World, job_id: str, words: str, *, runs: int) -> None:
    """Wait until a job has failed over damaged bytes in its newest runs, of which none computed."""
    job = await world.rests(job_id, within=120)

    assert (job.state, job.end_reason) == (job_pb2.JOB_STATE_FAILED, "PLATFORM_FAULT")
    assert words in job.state_message
    newest = (await leases_of(world, job_id))[-runs:]
    assert len(newest) == runs
    assert not any(lease.HasField("running_time") for lease in newest)
    await is_billed_by_its_leases(world, job_id)
    await holds_nothing(world)
    await world.proves_clean()


async def waits(world: World, words: str) -> bool | None:
    """Tell whether the agent's log says why a run does not start yet."""
    log = world.stack.log("trainer_runner@local")
    return True if any("preparation_waits" in line and words in line for line in log) else None


@pytest.mark.slow
async def test_a_checkpoint_whose_damage_only_its_reader_finds_is_not_continued_from(
    world: World, objects: ObjectStore
) -> None:
    job_id = await world.launch(LONG, name="damaged checkpoint")
    await world.reaches(job_id, 15)
    await world.client.jobs.stop(job_id)
    await world.rests(job_id)
    before = await world.settled(job_id)
    newest = max(await world.client.checkpoints.list(job_id), key=lambda one: one.step)
    folder = f"checkpoints/{TENANT}/{job_id}/{newest.checkpoint_id}"
    await spoil(objects, f"{folder}/adapter_model.safetensors")

    await world.client.jobs.resume(job_id)

    words = "adapter_model.safetensors is not what its listing says"
    await is_given_up(world, job_id, words, runs=2)
    assert (await world.settled(job_id)).total == before.total
