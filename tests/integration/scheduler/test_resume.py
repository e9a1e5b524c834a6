"""Resume, and what an agent is told of a run, through the real service."""

from __future__ import annotations

import asyncio

import pytest

from lehr.api.scheduler.v1 import job_pb2, scheduler_pb2
from lehr.errors import FailedPrecondition, NotFound
from lehr.rpc.client import raises_platform_errors
from tests.integration.scheduler.story import ALLOWED, Story, refused_resume


async def test_resume_continues_the_same_job_with_a_new_run(story: Story) -> None:
    job, _ = await story.running()
    await story.stop(job.job_id)
    await story.comes_to(job.job_id, "STOPPED")
    story.peers.checkpoints.of_job[job.job_id] = [False, True]

    first = await story.resume(job.job_id)
    again = await story.resume(job.job_id)
    started = await story.comes_to(job.job_id, "STARTING")

    assert first.job_id == again.job_id == job.job_id
    assert [run.ordinal for run in started.runs] == [1, 2]
    assert (job.job_id, 2) in story.peers.billing.holds
    assert (job.job_id, 3) not in story.peers.billing.holds


async def test_twenty_resumes_at_once_make_one_new_run(story: Story) -> None:
    job, _ = await story.running()
    await story.stop(job.job_id)
    await story.comes_to(job.job_id, "STOPPED")
    story.peers.checkpoints.of_job[job.job_id] = [True]

    await asyncio.gather(*(story.resume(job.job_id) for _ in range(20)))
    started = await story.comes_to(job.job_id, "STARTING")

    assert len(started.runs) == 2
    assert [fact for fact, _ in await story.facts(job.job_id)].count("queued") == 2


async def test_a_second_resume_with_another_key_is_refused(story: Story) -> None:
    story.peers.allocator.obeys_stops = True
    job, _ = await story.running()
    await story.stop(job.job_id)
    await story.comes_to(job.job_id, "STOPPED")
    story.peers.checkpoints.of_job[job.job_id] = [True]
    await story.resume(job.job_id, key="one")

    assert await refused_resume(story, job.job_id, key="two") == "JOB_STATE_FORBIDS"


@pytest.mark.parametrize("checkpoints", [[], [False]])
async def test_without_a_whole_checkpoint_there_is_nothing_to_resume(
    story: Story, checkpoints: list[bool]
) -> None:
    job, _ = await story.running()
    await story.stop(job.job_id)
    await story.comes_to(job.job_id, "STOPPED")
    story.peers.checkpoints.of_job[job.job_id] = checkpoints

    assert await refused_resume(story, job.job_id) == "NOTHING_TO_RESUME"
    assert (job.job_id, 2) not in story.peers.billing.holds


async def test_with_no_checkpoint_that_verifies_a_resume_is_refused_with_no_effect_at_all(
    story: Story,
) -> None:
    job, _ = await story.running()
    await story.stop(job.job_id)
    stopped = await story.comes_to(job.job_id, "STOPPED")
    story.peers.checkpoints.of_job[job.job_id] = [True, True]
    story.peers.checkpoints.broken.add(job.job_id)
    keys, facts = await story.count("request_keys"), await story.facts(job.job_id)

    with pytest.raises(FailedPrecondition, match="step 2") as refused, raises_platform_errors():
        await story.resume(job.job_id)

    assert refused.value.reason == "NO_CHECKPOINT_VERIFIES"
    assert await story.job(job.job_id) == stopped
    assert (job.job_id, 2) not in story.peers.billing.holds
    assert await story.facts(job.job_id) == facts
    assert await story.count("request_keys") == keys


async def test_a_refused_resume_may_be_repeated_once_storage_is_repaired(story: Story) -> None:
    job, _ = await story.running()
    await story.stop(job.job_id)
    await story.comes_to(job.job_id, "STOPPED")
    story.peers.checkpoints.of_job[job.job_id] = [True]
    story.peers.checkpoints.broken.add(job.job_id)
    reason = await refused_resume(story, job.job_id, key="same")
    story.peers.checkpoints.broken.clear()

    await story.resume(job.job_id, key="same")
    # What was accepted is not looked at again, whatever becomes of storage.
    story.peers.checkpoints.broken.add(job.job_id)
    await story.resume(job.job_id, key="same")
    started = await story.comes_to(job.job_id, "STARTING")

    assert reason == "NO_CHECKPOINT_VERIFIES"
    assert [run.ordinal for run in started.runs] == [1, 2]


async def test_queued_running_and_finished_jobs_are_not_resumed(story: Story) -> None:
    job, lease = await story.running()
    queued = await story.launch()

    reasons = [await refused_resume(story, one.job_id) for one in (job, queued)]
    await story.close(lease, "COMPLETED")
    done = await story.comes_to(job.job_id, "SUCCEEDED")
    reasons.append(await refused_resume(story, job.job_id))

    assert reasons == ["JOB_STATE_FORBIDS"] * 3
    assert await story.job(job.job_id) == done


async def test_a_failed_job_with_a_checkpoint_is_resumed_with_a_new_budget(story: Story) -> None:
    job, lease = await story.running()
    await story.close(lease, "BUDGET_EXHAUSTED")
    await story.comes_to(job.job_id, "FAILED")
    story.peers.checkpoints.of_job[job.job_id] = [True]
    more = job_pb2.Authorization()
    more.CopyFrom(ALLOWED)
    more.max_cost.micros *= 2

    answer = await story.user.ResumeJob(
        scheduler_pb2.ResumeJobRequest(job_id=job.job_id, request_id="more", authorization=more)
    )

    assert answer.job.authorization == more
    assert story.peers.billing.holds[job.job_id, 2].max_cost == more.max_cost


@pytest.mark.parametrize("end", ["OUT_OF_MEMORY", "USER_ERROR"])
async def test_what_failed_by_its_settings_is_resumed_from_a_checkpoint_and_by_request_alone(
    story: Story, end: str
) -> None:
    job, lease = await story.running()
    await story.close(lease, end)
    failed = await story.comes_to(job.job_id, "FAILED")
    story.peers.allocator.free["cpu"] = 0
    without = await refused_resume(story, job.job_id)
    story.peers.checkpoints.of_job[job.job_id] = [True]

    queued = await story.resume(job.job_id)
    again = await story.resume(job.job_id)
    story.peers.allocator.free["cpu"] = 1
    started = await story.comes_to(job.job_id, "STARTING")

    assert (without, len(failed.runs)) == ("NOTHING_TO_RESUME", 1)
    assert queued.state == job_pb2.JOB_STATE_QUEUED
    assert f"settings that ended in {end}" in queued.state_message
    assert again.version == queued.version
    assert [(run.ordinal, run.end_reason) for run in started.runs] == [(1, end), (2, "")]


async def test_stop_and_resume_in_quick_succession_all_take_effect(story: Story) -> None:
    job, _ = await story.running()
    await story.stop(job.job_id)
    await story.comes_to(job.job_id, "STOPPED")
    story.peers.checkpoints.of_job[job.job_id] = [True]
    # No GPU: the second stop finds the job in the queue.
    story.peers.allocator.free["cpu"] = 0
    await story.resume(job.job_id, key="one")
    await story.stop(job.job_id)
    await story.resume(job.job_id, key="two")
    story.peers.allocator.free["cpu"] = 1

    started = await story.comes_to(job.job_id, "STARTING")

    assert [run.ordinal for run in started.runs] == [1, 3]


async def test_the_agent_gets_what_its_trainer_needs(story: Story) -> None:
    job, lease = await story.started(tier="h")

    async with story.service.called_by("trainer_runner") as channel:
        stub = type(story.user)(channel)
        plan = await stub.GetRunPlan(
            scheduler_pb2.GetRunPlanRequest(lease_id=lease.lease_id, epoch=lease.epoch)
        )

    assert (plan.job_id, plan.run_id, plan.tenant) == (job.job_id, lease.run_id, "acme")
    assert (plan.model_name, plan.dataset_id) == ("smol", "ds_1")
    assert '"max_length":256' in plan.spec_json


async def test_no_agent_starts_for_a_wrong_epoch_an_ended_run_or_another_tenant(
    story: Story,
) -> None:
    job, lease = await story.started()
    request = scheduler_pb2.GetRunPlanRequest(lease_id=lease.lease_id, epoch=lease.epoch)
    reasons = []

    async with story.service.called_by("trainer_runner") as channel:
        stub = type(story.user)(channel)
        wrong = scheduler_pb2.GetRunPlanRequest(lease_id=lease.lease_id, epoch=lease.epoch + 1)
        with pytest.raises(FailedPrecondition) as error, raises_platform_errors():
            await stub.GetRunPlan(wrong)
        reasons.append(error.value.reason)
        await story.stop(job.job_id)
        await story.comes_to(job.job_id, "STOPPED")
        with pytest.raises(FailedPrecondition) as error, raises_platform_errors():
            await stub.GetRunPlan(request)
        reasons.append(error.value.reason)

    assert reasons == ["FENCED", "RUN_NOT_LIVE"]


async def test_an_unknown_job_is_not_found(story: Story) -> None:
    with pytest.raises(NotFound), raises_platform_errors():
        await story.job("job_" + "0" * 26)
