"""Who gets which GPU, and when: tiers, backups, bad jobs, lost nodes; all GPUs are pretended."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as gpu_pb
from lehr.api.scheduler.v1 import job_pb2
from lehr.objects import ObjectStore
from lehr.stack import Node
from tests.e2e.audit import (
    PATIENCE_SECONDS,
    SEED,
    TENANT,
    ends_well,
    gpu_states,
    holds_nothing,
    is_billed_by_its_leases,
    is_finished_once,
    leases_of,
    never_shared,
    node_of,
)
from tests.e2e.world import World, eventually, write_chats
from tests.support.stack import StackFactory, StackUnderTest

H, L, S, A = "h100-80gb", "l40s-48gb", "l4-24gb", "a100-40gb"
LONG = {"total_steps": 3000, "step_seconds": 0.1}
SHORT = {"total_steps": 2}


@pytest.fixture(scope="module")
def stack(stack_factory: StackFactory) -> StackUnderTest:
    """Node ``one`` with H, L and S, node ``two`` with four A; a silent node is lost in seconds."""
    return stack_factory(
        nodes=(
            Node(name="one", cpu_slots=0, pretend_gpus=f"{H}:1,{L}:2,{S}:1"),
            Node(name="two", cpu_slots=0, pretend_gpus=f"{A}:4"),
        ),
        environment={
            "scheduler": {
                "SCHEDULER_BACKOFF_SECONDS": "0.5",
                "SCHEDULER_BACKOFF_MAX_SECONDS": "1",
            },
            "gpu_allocator": {"GPU_ALLOCATOR_LEASE_TTL": "6", "GPU_ALLOCATOR_NODE_FRESH": "4"},
            "trainer_runner": {"TRAINER_RUNNER_UNCONFIRMED_AFTER": "4"},
        },
    )


async def state(world: World, job_id: str) -> int:
    """Return the state of a job."""
    return (await world.client.jobs.get(job_id)).state


async def is_placed(world: World, *job_ids: str) -> None:
    """Wait until jobs compute."""
    for job_id in job_ids:
        await world.until(job_id, lambda job: job.state == job_pb2.JOB_STATE_RUNNING)


async def stop(world: World, *job_ids: str) -> None:
    """Stop jobs and wait until they rest and nothing is held."""
    for job_id in job_ids:
        await world.client.jobs.stop(job_id)
    for job_id in job_ids:
        await world.rests(job_id)
    await holds_nothing(world)


async def tier_of(world: World, job_id: str) -> str:
    """Return the tier on which a job runs or ran last."""
    return (await leases_of(world, job_id))[-1].tier


async def test_waiting_for_one_tier_does_not_block_another(world: World) -> None:
    busy = await world.launch(LONG, name="busy", tier=H)
    await is_placed(world, busy)

    one, two, three, four, five = [
        await world.launch(LONG, name=f"J{number}", tier=tier)
        for number, tier in enumerate((H, L, H, L, L), start=1)
    ]
    await is_placed(world, two, four)
    waiting = [await world.client.jobs.get(job_id) for job_id in (one, three, five)]

    assert {job.state for job in waiting} == {job_pb2.JOB_STATE_QUEUED}
    assert all(tier in job.state_message for tier, job in zip((H, H, L), waiting, strict=True))
    assert [job.queue_position for job in waiting] == [1, 2, 1]
    await world.client.jobs.stop(two)
    await is_placed(world, five)
    await world.client.jobs.stop(busy)
    await is_placed(world, one)
    assert await state(world, three) == job_pb2.JOB_STATE_QUEUED
    await stop(world, one, three, four, five)
    await world.rests(busy)
    await world.proves_clean()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.slow)])
async def test_one_gpu_has_one_job_though_the_allocator_dies(world: World, rounds: int) -> None:
    source = random.Random(f"{SEED} {rounds}")  # noqa: S311 - repeatable
    for number in range(rounds):
        crowd = asyncio.gather(
            *(world.launch(SHORT, name=f"round {number}", tier=A) for _ in range(8))
        )
        await asyncio.sleep(source.uniform(0.0, 1.5))
        world.stack.kill("gpu_allocator")
        jobs = await crowd
        ended = [await world.rests(job_id, within=PATIENCE_SECONDS) for job_id in jobs]

        assert {job.state for job in ended} == {job_pb2.JOB_STATE_SUCCEEDED}
        assert {len(await leases_of(world, job_id)) for job_id in jobs} == {1}
        await holds_nothing(world)
    await never_shared(world)
    await world.proves_clean()


async def test_jobs_that_cannot_run_hold_nothing(world: World, tmp_path: Path) -> None:
    rows = write_chats(tmp_path / "gone.jsonl", 41)
    dataset = (await world.client.datasets.upload(rows, name="gone")).dataset
    out_of_memory = {"total_steps": 5, "steps": {1: {"die": "oom"}}}
    blocker = await world.launch(LONG, name="blocker", gpus=4, tier=A)
    await is_placed(world, blocker)
    without_data = [
        await world.launch(SHORT, name="no data", dataset="gone", tier=A) for _ in range(2)
    ]
    bad = without_data + [await world.launch(out_of_memory, tier=A) for _ in range(2)]
    good = await world.launch(SHORT, name="good", tier=A)
    await forget(world, dataset.dataset_id)

    await world.client.jobs.stop(blocker)
    ended = [await world.rests(job_id) for job_id in bad]

    assert {job.state for job in ended} == {job_pb2.JOB_STATE_FAILED}
    assert [job.end_reason for job in ended] == ["USER_ERROR"] * 2 + ["OUT_OF_MEMORY"] * 2
    assert all("dataset" in job.state_message for job in ended[:2])
    assert (await world.rests(good)).state == job_pb2.JOB_STATE_SUCCEEDED
    assert [(await world.settled(job_id)).billed_seconds for job_id in without_data] == [0, 0]
    await holds_nothing(world)
    await world.proves_clean()


async def forget(world: World, dataset_id: str) -> None:
    """Delete the bytes of a dataset behind everybody's back."""
    given = world.stack.environment
    keys = ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY", "BUCKET", "REGION")
    store = ObjectStore(*(given[f"LEHR_S3_{key}"] for key in keys))
    found = [one.key for one in await store.list(f"datasets/{TENANT}/") if dataset_id in one.key]
    assert found
    await store.delete(found)


async def test_backups_are_tried_in_their_order_and_kept(world: World) -> None:
    backups: dict[str, Any] = {"tier": H, "backup_tiers": [L, S], "backup_after_seconds": 1}
    busy = [await world.launch(LONG, name="busy", tier=H)]
    await is_placed(world, *busy)

    on_second = await world.launch(LONG, name="second", **backups)
    await is_placed(world, on_second)
    await world.client.jobs.stop(busy[0])
    await world.rests(busy[0])
    busy = [await world.launch(LONG, tier=tier) for tier in (H, L)]
    await is_placed(world, *busy)
    on_third = await world.launch(LONG, name="third", **backups)
    await is_placed(world, on_third)
    nowhere = await world.launch(LONG, name="nowhere", **backups)
    await asyncio.sleep(4)

    # It stays where it is, though its first choice was free for a while.
    assert await tier_of(world, on_second) == L
    assert await tier_of(world, on_third) == S
    assert len(await leases_of(world, on_second)) == 1
    waiting = await world.client.jobs.get(nowhere)
    assert waiting.state == job_pb2.JOB_STATE_QUEUED
    assert all(tier in waiting.state_message for tier in (H, L, S))
    await stop(world, *busy, on_second, on_third, nowhere)
    assert (await world.settled(nowhere)).total.micros == 0
    assert [line.tier for line in (await world.settled(on_third)).lines] == [S]
    await world.proves_clean()


@pytest.mark.parametrize("fault", ["frozen", pytest.param("killed", marks=pytest.mark.slow)])
async def test_a_lost_node_is_noticed_and_its_job_goes_on(world: World, fault: str) -> None:
    script = {"total_steps": 40, "step_seconds": 0.1}
    job_id = await world.launch(script, name=fault, tier=A, backup_tiers=[L])
    await world.reaches(job_id, 15)
    assert await node_of(world, job_id) == "two"

    world.stack.pause("trainer_runner@two")
    try:
        moved = await world.until(job_id, lambda job: len(job.runs) == 2)
        assert moved.runs[0].end_reason == "NODE_LOST"
        assert await node_of(world, job_id) == "one"
        lost = (await leases_of(world, job_id))[0]
        assert lost.committed_time.ToDatetime() <= lost.alive_time.ToDatetime()
        assert (await gpu_states(world))[gpu_pb.GPU_STATE_HELD] >= 1
        if fault == "killed":
            world.stack.kill("trainer_runner@two")
    finally:
        world.stack.resume("trainer_runner@two")

    await ends_well(world, job_id, steps=40, runs=2)


async def test_a_trainer_that_dies_at_each_try_is_given_up(world: World) -> None:
    script = {"total_steps": 20, "steps": {5: {"die": "kill"}}}

    job_id = await world.launch(script, name="dies", tier=S)

    job = await world.rests(job_id, within=PATIENCE_SECONDS)
    assert (job.state, job.end_reason) == (job_pb2.JOB_STATE_FAILED, "PLATFORM_FAULT")
    assert len(job.runs) == 6
    await is_finished_once(world, job_id)
    await is_billed_by_its_leases(world, job_id)
    await holds_nothing(world)
    await eventually(lambda: _not_billed(world, job_id))


async def _not_billed(world: World, job_id: str) -> bool | None:
    # It died before it had saved anything, each time.
    return True if (await world.settled(job_id)).billed_seconds == 0 else None
