"""Faults at the worst places: half a checkpoint, repeated events, frozen nodes, deaf trainers.

Two nodes with one slot each; leases are lost after seconds.
"""

import asyncio
import json
import os
import signal
import uuid
from typing import Any

import psutil
import pytest

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as gpu_pb
from lehr.api.scheduler.v1 import job_pb2
from lehr.errors import FailedPrecondition
from lehr.objects import ObjectStore
from lehr.stack import Node
from tests.e2e.audit import (
    PATIENCE_SECONDS,
    TENANT,
    ends_well,
    has_whole_checkpoints,
    holds_nothing,
    is_billed_by_its_leases,
    node_of,
    trainer_of,
)
from tests.e2e.world import World, eventually
from tests.support.stack import StackFactory, StackUnderTest

KILL = {"action": "kill"}
STEPS = 40
SCRIPT = {"total_steps": STEPS, "step_seconds": 0.1}


@pytest.fixture(scope="module")
def stack(stack_factory: StackFactory) -> StackUnderTest:
    """Two nodes, and all patience cut to seconds."""
    return stack_factory(
        nodes=(Node(name="a"), Node(name="b")),
        environment={
            "scheduler": {"SCHEDULER_BACKOFF_SECONDS": "0.5"},
            "gpu_allocator": {"GPU_ALLOCATOR_LEASE_TTL": "6", "GPU_ALLOCATOR_NODE_FRESH": "4"},
            "trainer_runner": {
                "TRAINER_RUNNER_UNCONFIRMED_AFTER": "4",
                "TRAINER_RUNNER_STOP_GRACE": "3",
                "TRAINER_RUNNER_KILL_AFTER": "2",
            },
        },
    )


def arm(world: World, name: str, **fault: Any) -> str:
    """Arm one fault point and return what its count is known by."""
    arming = uuid.uuid4().hex
    world.stack.arm(**{name.replace(".", "__"): {**fault, "arming": arming}})
    return arming


def fired(world: World, arming: str) -> int:
    """Return how often an armed fault has struck."""
    counts = [json.loads(file.read_text()) for file in world.stack.folder.rglob("*.counts")]
    return sum(count["fired"] for found in counts for key, count in found.items() if arming in key)


@pytest.mark.parametrize(
    "point",
    [
        "trainer.save.half_weights",
        pytest.param("trainer.save.before", marks=pytest.mark.slow),
        pytest.param("trainer.save.weights", marks=pytest.mark.slow),
        pytest.param("trainer_runner.checkpoint_staged", marks=pytest.mark.slow),
        pytest.param("trainer_runner.upload.begun", marks=pytest.mark.slow),
        pytest.param("trainer_runner.upload.put", marks=pytest.mark.slow),
        pytest.param("trainer_runner.upload.committed", marks=pytest.mark.slow),
        pytest.param("trainer_runner.ended", marks=pytest.mark.slow),
        pytest.param("trainer_runner.before_close", marks=pytest.mark.slow),
        pytest.param("trainer_runner.published", marks=pytest.mark.slow),
        pytest.param("checkpoint_store.commit.before_manifest", marks=pytest.mark.slow),
        pytest.param("checkpoint_store.commit.after_manifest", marks=pytest.mark.slow),
        pytest.param("checkpoint_store.commit.after_row", marks=pytest.mark.slow),
        pytest.param("gpu_allocator.acquire.after_commit", marks=pytest.mark.slow),
        pytest.param("gpu_allocator.sync_node.after_commit", marks=pytest.mark.slow),
        pytest.param("scheduler.place.after_acquire", marks=pytest.mark.slow),
        pytest.param("scheduler.advance.before_commit", marks=pytest.mark.slow),
        pytest.param("billing.meter.before_commit", marks=pytest.mark.slow),
        pytest.param("billing.settle.after_charge", marks=pytest.mark.slow),
        pytest.param("billing.settle.after_commit", marks=pytest.mark.slow),
        pytest.param("telemetry.runs.before_commit", marks=pytest.mark.slow),
        pytest.param("telemetry.runs.before_ack", marks=pytest.mark.slow),
    ],
)
async def test_a_death_at_a_fault_point_leaves_a_job_whole(world: World, point: str) -> None:
    # Points of the trainer and of uploads are met at each save: it is the third that dies.
    is_save = point.startswith(("trainer.save", "trainer_runner.upload", "checkpoint_store"))
    arming = arm(world, point, **KILL, skip=2 if is_save else 0)

    job_id = await world.launch(SCRIPT, name=point)

    await ends_well(world, job_id, steps=STEPS)
    assert fired(world, arming)


async def test_a_half_written_checkpoint_is_never_seen(world: World) -> None:
    arm(world, "trainer.save.half_weights", **KILL, skip=2)
    seen: set[int] = set()

    job_id = await world.launch(SCRIPT, checkpoints={"max_checkpoints": 10})
    while not len((await world.client.jobs.get(job_id)).runs) > 1:
        seen |= set(await world.saved(job_id))
        await asyncio.sleep(0.1)
    await ends_well(world, job_id, steps=STEPS, runs=2)

    assert seen <= {10, 20}
    assert "Resuming from the checkpoint of step 20" in await world.log(job_id)


async def test_resume_passes_over_checkpoints_that_cannot_be_read(world: World) -> None:
    script = {**SCRIPT, "total_steps": 200, "steps": {}}
    job_id = await world.launch(script, checkpoints={"max_checkpoints": 10})
    await world.until(job_id, lambda job: job.progress.step >= 35)
    await world.client.jobs.stop(job_id)
    await world.rests(job_id)
    newest = sorted(await world.saved(job_id))[-2:]
    third = sorted(await world.saved(job_id))[-3]

    await spoil(world, job_id, newest)
    await world.client.jobs.resume(job_id)
    await world.until(job_id, lambda job: job.progress.step > max(newest))

    told = await world.log(job_id)
    assert f"Resuming from the checkpoint of step {third}" in told
    assert all(f"A checkpoint was skipped: step {step}" in told for step in newest)
    await stops(world, job_id)


async def test_without_any_readable_checkpoint_nothing_is_trained_or_billed(world: World) -> None:
    job_id = await world.launch({**SCRIPT, "total_steps": 200})
    await world.reaches(job_id, 15)
    await world.client.jobs.stop(job_id)
    stopped = await world.rests(job_id)
    before = await world.settled(job_id)

    spoilt = list(await world.saved(job_id))
    await spoil(world, job_id, spoilt)
    with pytest.raises(FailedPrecondition) as refused:
        await world.client.jobs.resume(job_id)

    assert refused.value.reason == "NO_CHECKPOINT_VERIFIES"
    assert all(f"step {step}" in refused.value.message for step in spoilt)
    assert await world.client.jobs.get(job_id) == stopped
    assert (await world.client.jobs.cost(job_id)).total == before.total
    ledger = (await world.client.billing.ledger(job_id=job_id)).transactions
    assert [one.kind for one in ledger].count("hold") == 1


async def test_checkpoints_that_break_after_a_resume_was_accepted_end_its_run_unbilled(
    world: World,
) -> None:
    job_id = await world.launch({**SCRIPT, "total_steps": 200})
    await world.reaches(job_id, 15)
    await world.client.jobs.stop(job_id)
    await world.rests(job_id)
    before = await world.settled(job_id)

    spoilt = list(await world.saved(job_id))
    arming = arm(world, "scheduler.resume.after_hold", action="hang")
    resuming = asyncio.create_task(world.client.jobs.resume(job_id))
    await eventually(lambda: _fired(world, arming))
    await spoil(world, job_id, spoilt)
    world.stack.arm()
    await resuming
    job = await world.rests(job_id, within=PATIENCE_SECONDS)

    assert job.state == job_pb2.JOB_STATE_FAILED
    assert "checkpoint" in job.state_message
    assert all(f"step {step}" in job.state_message for step in spoilt)
    assert (await world.client.jobs.cost(job_id)).total == before.total


async def test_stop_and_resume_follow_each_other_quickly(world: World) -> None:
    job_id = await world.launch({"total_steps": 100, "step_seconds": 0.05}, name="twice")
    arm(world, "relay.before_mark", action="error", times=200)

    for step in (15, 45):
        await world.reaches(job_id, step)
        await world.client.jobs.stop(job_id)
        stopped = await world.rests(job_id)
        assert stopped.state == job_pb2.JOB_STATE_STOPPED
        await world.client.jobs.resume(job_id)

    await ends_well(world, job_id, steps=100, runs=3, stops=2)


@pytest.mark.parametrize(
    "with_trainer", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["agent", "node"]
)
async def test_a_frozen_agents_job_moves_and_its_node_is_fenced(
    world: World, with_trainer: bool
) -> None:
    job_id = await world.launch({"total_steps": 70, "step_seconds": 0.1}, name="frozen")
    await world.reaches(job_id, 12)
    first = await node_of(world, job_id)
    trainer = await trainer_of(world, job_id)
    agent = f"trainer_runner@{first}"

    freeze(world, agent, with_trainer=with_trainer)
    try:
        moved = await world.until(job_id, lambda job: len(job.runs) == 2)
        assert await node_of(world, job_id) != first
        await world.reaches(job_id, 30)
        # Nobody has proof that the old trainer is dead.
        assert await gpu_of(world, first) == (gpu_pb.GPU_STATE_HELD, moved.runs[0].lease_id)
        assert moved.runs[0].end_reason == "NODE_LOST"
    finally:
        thaw(world, agent)

    await eventually(lambda: _gone(trainer))
    await ends_well(world, job_id, steps=70, runs=2)


async def gpu_of(world: World, node: str) -> tuple[int, str]:
    """Return the state of a node's only GPU, and the lease that holds it."""
    nodes = {found.name: found for found in await world.client.gpus.nodes()}
    [gpu] = nodes[node].gpus
    return gpu.state, gpu.lease_id


def freeze(world: World, agent: str, *, with_trainer: bool) -> None:
    """Stop an agent's clock, and its trainer's as well or not."""
    if with_trainer:
        world.stack.pause(agent)
    else:
        os.kill(world.stack.pid(agent), signal.SIGSTOP)


def thaw(world: World, agent: str) -> None:
    """Let a frozen agent go on."""
    world.stack.resume(agent)


async def test_a_deaf_trainer_and_its_children_are_gone_before_the_next_job(world: World) -> None:
    deaf = {
        **SCRIPT,
        "total_steps": 600,
        "ignore_term": True,
        "child_processes": 4,
        "steps": {5: {"die": "ignore_stop"}},
    }
    job_id = await world.launch(deaf, name="deaf")
    other = await world.launch({**SCRIPT, "total_steps": 100}, name="neighbour")
    await world.reaches(job_id, 10)
    trainer = await trainer_of(world, job_id)
    family = [trainer, *trainer.children(recursive=True)]
    neighbour = await trainer_of(world, other)

    stopping = await world.client.jobs.stop(job_id)
    waiting = await world.launch({**SCRIPT, "total_steps": 5}, name="next")
    assert stopping.state == job_pb2.JOB_STATE_STOPPING
    assert len(family) >= 5
    await world.until(waiting, lambda job: job.state != job_pb2.JOB_STATE_QUEUED)
    assert not [one for one in family if _lives(one)]
    assert _lives(neighbour)

    job = await world.rests(job_id)
    cost = await world.settled(job_id)
    ran = stopping.stop_time.ToDatetime() - job.start_time.ToDatetime()
    assert job.state == job_pb2.JOB_STATE_STOPPED
    assert cost.billed_seconds <= ran.total_seconds()
    await is_billed_by_its_leases(world, job_id)
    await ends_well(world, other, steps=100, runs=1)


async def stops(world: World, job_id: str) -> None:
    """Stop a job and prove that what is left of it is whole."""
    await world.client.jobs.stop(job_id)
    await world.rests(job_id, within=PATIENCE_SECONDS)
    await is_billed_by_its_leases(world, job_id)
    await has_whole_checkpoints(world, job_id)
    await holds_nothing(world)
    await world.proves_clean()


async def spoil(world: World, job_id: str, steps: list[int]) -> None:
    """Change a byte count of what the store keeps of these steps."""
    given = world.stack.environment
    keys = ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY", "BUCKET", "REGION")
    store = ObjectStore(*(given[f"LEHR_S3_{key}"] for key in keys))
    for one in await world.client.checkpoints.list(job_id):
        if one.step in steps:
            key = f"checkpoints/{TENANT}/{job_id}/{one.checkpoint_id}/optimizer.safetensors"
            assert await store.stat(key)
            await store.put_bytes(key, b"spoiled")


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _fired(world: World, arming: str) -> bool | None:
    return bool(fired(world, arming)) or None


async def _gone(process: psutil.Process) -> bool | None:
    return None if _lives(process) else True
