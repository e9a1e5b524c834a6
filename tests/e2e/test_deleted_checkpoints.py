"""CK-09 of the requirements: checkpoints of a stopped job are deleted, and it is resumed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2 as pb
from lehr.api.checkpoint_store.v1.checkpoint_store_pb2_grpc import CheckpointStoreServiceStub
from lehr.api.scheduler.v1 import job_pb2
from lehr.client.connection import Connection, Endpoint
from lehr.errors import FailedPrecondition
from tests.e2e.audit import holds_nothing, is_billed_by_its_leases, leases_of
from tests.e2e.test_life_of_a_job import script
from tests.e2e.world import World

SERIES = "10:1.50 20:1.20 30:1.40 40:1.30 50:1.10 60:1.25"
STEPS, NEWEST = 60, 34


async def stopped_at_34(world: World) -> str:
    """Stop a job within its step 35, which is then dropped; return it."""
    scripted = script(SERIES, STEPS)
    steps = {**scripted["steps"], NEWEST + 1: {"sleep_seconds": 6}}  # type: ignore[dict-item]
    job_id = await world.launch(
        {**scripted, "steps": steps},
        early_stopping={"patience": None},
        checkpoints={"max_checkpoints": 10},
    )
    await world.reaches(job_id, NEWEST)
    await world.client.jobs.stop(job_id)
    job = await world.rests(job_id)
    assert job.state == job_pb2.JOB_STATE_STOPPED
    assert await world.saved(job_id) == {10: "", 20: "best", 30: "", NEWEST: ""}
    return job_id


async def at(world: World, job_id: str, step: int) -> pb.Checkpoint:
    """Return the checkpoint of a step."""
    return next(one for one in await world.client.checkpoints.list(job_id) if one.step == step)


async def stored_bytes(world: World, job_id: str) -> int:
    """Return the sum that the list of checkpoints shows."""
    gateway = world.stack.status().gateway
    connection = Connection(Endpoint(address=gateway, api_key=world.stack.api_key))
    stub = CheckpointStoreServiceStub(connection.channel)
    request = pb.ListCheckpointsRequest(job_id=job_id)
    answer: pb.ListCheckpointsResponse = await connection.call(stub.ListCheckpoints, request)
    await connection.close()
    return answer.size_bytes


async def finished(world: World, job_id: str, *, starts: Sequence[int]) -> job_pb2.Job:
    """Wait for the success of a resumed job; its runs began at these steps."""
    job = await world.rests(job_id)
    assert (job.state, len(job.runs)) == (job_pb2.JOB_STATE_SUCCEEDED, len(starts))
    await world.has_steps(job_id, STEPS)
    log = await world.log(job_id)
    for start in starts[1:]:
        assert f"Resuming from the checkpoint of step {start}." in log
    assert log.count("Resuming from the checkpoint") == len(starts) - 1
    await is_billed_by_its_leases(world, job_id)
    await world.proves_clean()
    return job


async def test_after_best_is_deleted_its_loss_stays_the_bar_and_the_next_new_low_is_best(
    world: World,
) -> None:
    job_id = await stopped_at_34(world)
    best, before = await at(world, job_id, 20), await stored_bytes(world, job_id)

    with pytest.raises(FailedPrecondition) as unsaid:
        await world.client.checkpoints.delete(best.checkpoint_id)
    kept = await world.saved(job_id)
    for _ in range(2):
        await world.client.checkpoints.delete(best.checkpoint_id, allow_best_or_final=True)
    without, after = await world.saved(job_id), await stored_bytes(world, job_id)
    await world.client.jobs.resume(job_id)
    job = await finished(world, job_id, starts=[0, NEWEST])

    assert (unsaid.value.reason, kept[20]) == ("CHECKPOINT_PROTECTED", "best")
    assert (20 in without, "best" in " ".join(without.values())) == (False, False)
    assert before - after == best.size_bytes > 0
    saved = await world.saved(job_id)
    # 1.40 and 1.30 are above the bar of 1.20; 1.10 is the next new low.
    assert [step for step, roles in saved.items() if "best" in roles] == [50]
    assert saved[40] == saved[30] == ""
    assert job.progress.best_step == 50


async def test_after_the_newest_is_deleted_the_job_goes_on_from_the_one_before(
    world: World,
) -> None:
    job_id = await stopped_at_34(world)
    last, before = await at(world, job_id, NEWEST), await stored_bytes(world, job_id)

    for _ in range(2):
        await world.client.checkpoints.delete(last.checkpoint_id)
    after = await stored_bytes(world, job_id)
    await world.client.jobs.resume(job_id)
    await finished(world, job_id, starts=[0, 30])

    assert before - after == last.size_bytes > 0


async def test_after_all_are_deleted_there_is_nothing_to_resume_and_nothing_is_billed(
    world: World,
) -> None:
    job_id = await stopped_at_34(world)
    cost, job = await world.settled(job_id), await world.client.jobs.get(job_id)
    leases = await leases_of(world, job_id)
    held = (await world.client.billing.balance()).held

    for one in await world.client.checkpoints.list(job_id):
        await world.client.checkpoints.delete(one.checkpoint_id, allow_best_or_final=True)
    for _ in range(2):
        with pytest.raises(FailedPrecondition, match="checkpoint") as refused:
            await world.client.jobs.resume(job_id)
        assert refused.value.reason == "NOTHING_TO_RESUME"

    assert (await world.saved(job_id), await stored_bytes(world, job_id)) == ({}, 0)
    after = await world.client.jobs.get(job_id)
    assert (after.state, after.version, len(after.runs)) == (job.state, job.version, 1)
    assert (await world.client.jobs.cost(job_id)).total == cost.total
    assert await leases_of(world, job_id) == leases
    assert (await world.client.billing.balance()).held == held
    await holds_nothing(world)
