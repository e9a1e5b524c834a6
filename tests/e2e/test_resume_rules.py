"""What may be resumed: whatever rests with a checkpoint, however it ended, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lehr.api.scheduler.v1 import job_pb2
from lehr.errors import FailedPrecondition
from tests.e2e.audit import has_whole_checkpoints, holds_nothing, is_billed_by_its_leases
from tests.e2e.world import World

SLOW = {"total_steps": 600, "step_seconds": 0.1}
#: Stopped early at step 40.
WORSE = {
    "total_steps": 200,
    "steps": {step: {"eval_loss": step / 10} for step in (10, 20, 30, 40)},
}
NO_NUMBER = {step: {"loss": "NaN"} for step in range(11, 16)}


async def standing(world: World, job_id: str) -> tuple[Any, ...]:
    """Return everything of a job that a refused resume must leave alone."""
    job = await world.client.jobs.get(job_id)
    saved = [
        (one.step, one.is_best, one.is_final, [file.sha256 for file in one.files])
        for one in await world.client.checkpoints.list(job_id)
    ]
    cost = await world.client.jobs.cost(job_id)
    return job.state, job.version, job.end_reason, len(job.runs), saved, cost.total.micros


async def is_refused(world: World, job_id: str, state: str, reason: str) -> None:
    """Ask twice to resume a job that rests."""
    before = await standing(world, job_id)
    for _ in range(2):
        await refuses(world, job_id, state, reason)
    assert await standing(world, job_id) == before


async def refuses(world: World, job_id: str, state: str, reason: str) -> None:
    """Ask to resume a job; the answer names its state."""
    with pytest.raises(FailedPrecondition, match=f"is {state}") as refused:
        await world.client.jobs.resume(job_id)
    assert (refused.value.reason, refused.value.facts["have"]) == (reason, state)


async def test_only_what_rests_with_a_checkpoint_is_resumed(world: World) -> None:
    completed = await world.launch({"total_steps": 20}, name="completed")
    early = await world.launch(WORSE, name="early")
    failed = await world.launch(
        {"total_steps": 20, "steps": {step: {"loss": "NaN"} for step in range(1, 6)}}, name="failed"
    )
    unsaved = await world.launch({**SLOW, "start_seconds": 60}, name="unsaved")
    ends = [(await world.rests(job_id)).end_reason for job_id in (completed, early, failed)]
    assert ends == ["COMPLETED", "EARLY_STOPPED", "USER_ERROR"]
    await world.until(unsaved, lambda job: job.state == job_pb2.JOB_STATE_STARTING)
    await world.client.jobs.stop(unsaved)
    await world.rests(unsaved)
    for job_id in (completed, early, failed, unsaved):
        await world.settled(job_id)

    await is_refused(world, completed, "SUCCEEDED", "JOB_STATE_FORBIDS")
    await is_refused(world, early, "SUCCEEDED", "JOB_STATE_FORBIDS")
    await is_refused(world, failed, "FAILED", "NOTHING_TO_RESUME")
    await is_refused(world, unsaved, "STOPPED", "NOTHING_TO_RESUME")

    running = await world.launch(SLOW, name="running")
    queued = await world.launch({"total_steps": 2}, name="queued")
    await world.reaches(running, 15)
    await refuses(world, running, "RUNNING", "JOB_STATE_FORBIDS")
    await refuses(world, queued, "QUEUED", "JOB_STATE_FORBIDS")
    await world.client.jobs.stop(queued)
    await world.client.jobs.stop(running)
    await world.rests(running)
    resumed = [await world.client.jobs.resume(running, request_id="once") for _ in range(2)]
    assert resumed[0].job_id == resumed[1].job_id == running
    job = await world.until(running, lambda job: job.state == job_pb2.JOB_STATE_RUNNING)
    assert len(job.runs) == 2
    await world.client.jobs.stop(running)
    await world.rests(running)
    await world.settled(running)
    await world.proves_clean()


@pytest.mark.parametrize(
    ("end", "fate", "last"),
    [("OUT_OF_MEMORY", {15: {"die": "oom"}}, 14), ("USER_ERROR", NO_NUMBER, 15)],
)
async def test_what_failed_by_its_settings_keeps_its_checkpoints_and_goes_on_by_request_alone(
    world: World, end: str, fate: dict[int, Any], last: int
) -> None:
    job_id = await world.launch({"total_steps": 30, "step_seconds": 0.1, "steps": fate}, name=end)
    first = await world.rests(job_id)
    await holds_nothing(world)
    await world.settled(job_id)
    await asyncio.sleep(3)
    untouched = await world.client.jobs.get(job_id)

    assert (first.state, first.end_reason) == (job_pb2.JOB_STATE_FAILED, end)
    assert "step 15" in first.state_message
    assert (untouched.version, len(untouched.runs)) == (first.version, 1)
    assert set(await world.saved(job_id)) == {10}
    await has_whole_checkpoints(world, job_id)

    resumed = await world.client.jobs.resume(job_id)
    second = await world.rests(job_id)

    assert f"settings that ended in {end}" in resumed.state_message
    assert (second.end_reason, len(second.runs)) == (end, 2)
    assert "Resuming from the checkpoint of step 10" in await world.log(job_id)
    await world.has_steps(job_id, last)
    await is_billed_by_its_leases(world, job_id)
    await holds_nothing(world)
    await world.proves_clean()
