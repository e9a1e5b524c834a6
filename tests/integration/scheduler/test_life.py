"""From the queue to an end: placed, started, retried, stopped, resumed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC

import pytest

from lehr import faults
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2
from lehr.api.scheduler.v1 import job_pb2, scheduler_pb2
from lehr.ids import derived_id
from tests.integration.scheduler.story import ALLOWED, Story, a_spec, until


async def test_a_job_gets_gpus_computes_and_succeeds(story: Story) -> None:
    job, lease = await story.running()

    await story.close(lease, "COMPLETED")
    done = await story.comes_to(job.job_id, "SUCCEEDED")

    assert done.end_reason == "COMPLETED"
    assert [(run.ordinal, run.tier, run.end_reason) for run in done.runs] == [
        (1, "cpu", "COMPLETED")
    ]
    assert await story.facts(job.job_id) == [
        ("queued", 1),
        ("starting", 2),
        ("running", 3),
        ("finished", 4),
    ]


async def test_the_lease_is_asked_for_with_what_is_paid_and_allowed(story: Story) -> None:
    story.peers.billing.deadline_seconds = 777

    _, _ = await story.started()

    asked = story.peers.allocator.asked[0]
    assert (asked.tenant, asked.project, asked.attempt, asked.gpu_count) == (
        "acme",
        "default",
        1,
        1,
    )
    assert [(one.tier, one.funded_duration.seconds) for one in asked.tiers] == [("cpu", 3600)]
    assert asked.deadline_duration.seconds == 777


async def test_waiting_for_one_tier_does_not_block_others(story: Story) -> None:
    story.peers.allocator.free["h"] = 0
    j1 = await story.launch(tier="h")
    j2 = await story.launch(tier="l")
    j3 = await story.launch(tier="h")
    j4 = await story.launch(tier="l")
    j5 = await story.launch(tier="l")

    await story.comes_to(j2.job_id, "STARTING")
    await story.comes_to(j4.job_id, "STARTING")
    waiting = [await story.job(one.job_id) for one in (j1, j3, j5)]

    assert [one.queue_position for one in waiting] == [1, 2, 1]
    assert waiting[0].state_message == "waits for h: 0 of 1 free"
    story.peers.allocator.free["h"] = 1
    await story.comes_to(j1.job_id, "STARTING")
    assert (await story.job(j3.job_id)).state == job_pb2.JOB_STATE_QUEUED


async def test_a_backup_is_taken_after_its_wait_and_shown(story: Story) -> None:
    story.peers.allocator.free["h"] = 0

    job = await story.launch(tier="h", backup_tiers=["l"], backup_after_seconds=1)
    started = await story.comes_to(job.job_id, "STARTING")

    assert started.runs[0].tier == "l"
    assert started.state_message == "starts on l, a backup of h"


async def test_higher_priority_runs_earlier(story: Story) -> None:
    story.peers.allocator.free["cpu"] = 0
    low = await story.launch()
    high = await story.launch(priority=5)

    story.peers.allocator.free["cpu"] = 1
    await story.comes_to(high.job_id, "STARTING")

    assert (await story.job(low.job_id)).state == job_pb2.JOB_STATE_QUEUED


POOR = derived_id("job", "acme", "poor")


async def test_a_job_that_cannot_be_paid_for_keeps_no_tier_from_others(story: Story) -> None:
    story.peers.allocator.stock(cpu=1, l=0)
    story.peers.billing.too_dear.add((POOR, "cpu"))

    await story.launch(key="poor", tier="cpu", backup_tiers=["l"], backup_after_seconds=0)
    failed = await story.comes_to(POOR, "FAILED")
    rich = await story.launch()

    assert failed.end_reason == "BUDGET_EXHAUSTED"
    await story.comes_to(rich.job_id, "STARTING")


async def test_a_job_waits_for_the_tier_that_it_is_paid_for_and_no_other(story: Story) -> None:
    story.peers.allocator.stock(cpu=1, l=1)
    story.peers.allocator.free["l"] = 0
    story.peers.billing.too_dear.add((POOR, "cpu"))

    await story.launch(key="poor", tier="cpu", backup_tiers=["l"], backup_after_seconds=0)
    rich = await story.launch()
    await story.comes_to(rich.job_id, "STARTING")
    waits = await story.job(POOR)
    story.peers.allocator.free["l"] = 1

    assert waits.state == job_pb2.JOB_STATE_QUEUED
    assert (await story.comes_to(POOR, "STARTING")).runs[0].tier == "l"


async def test_priority_moves_nobody_of_another_tenant_back(story: Story) -> None:
    story.peers.allocator.free["cpu"] = 0
    mine = [await story.launch() for _ in range(2)]
    async with story.service.called_by("gateway", tenant="rival") as channel:
        rival = replace(story, user=type(story.user)(channel))
        theirs = [await rival.launch(priority=100) for _ in range(2)]
        positions = [(await rival.job(job.job_id)).queue_position for job in theirs]
    positions += [(await story.job(job.job_id)).queue_position for job in mine]

    story.peers.allocator.free["cpu"] = 1
    order: list[str] = []
    while len(order) < 4:
        lease = await _next_lease(story, but=order)
        order.append(lease.job_id)
        await story.close(lease, "COMPLETED")

    assert positions == [1, 2, 1, 2]
    assert order == [mine[0].job_id, theirs[0].job_id, mine[1].job_id, theirs[1].job_id]


async def _next_lease(story: Story, *, but: list[str]) -> gpu_allocator_pb2.Lease:
    """Wait for a lease of a job that is none of ``but``, and until its run is known."""

    def found() -> list[gpu_allocator_pb2.Lease]:
        return [one for one in story.peers.allocator.leases.values() if one.job_id not in but]

    async def is_begun() -> bool:
        return bool(found()) and await story.count("runs") == len(but) + 1

    await until(is_begun)
    return found()[0]


async def test_faults_of_the_platform_are_tried_again_and_then_given_up(story: Story) -> None:
    job = await story.launch()

    for ordinal in range(1, 7):

        async def next_run(wanted: int = ordinal) -> bool:
            return len(story.peers.allocator.of_job(job.job_id)) == wanted

        await until(next_run)
        await story.comes_to(job.job_id, "STARTING")
        await story.close(story.peers.allocator.of_job(job.job_id)[-1], "PLATFORM_FAULT")
    failed = await story.comes_to(job.job_id, "FAILED")

    assert failed.end_reason == "PLATFORM_FAULT"
    assert [run.end_reason for run in failed.runs] == ["PLATFORM_FAULT"] * 6
    assert [fact for fact, _ in await story.facts(job.job_id)].count("finished") == 1


@pytest.mark.parametrize("reason", ["USER_ERROR", "OUT_OF_MEMORY"])
async def test_what_would_fail_again_is_not_tried_again(story: Story, reason: str) -> None:
    job, lease = await story.running()

    await story.close(lease, reason)
    failed = await story.comes_to(job.job_id, "FAILED")

    assert (failed.end_reason, len(failed.runs)) == (reason, 1)


async def test_a_lost_node_frees_the_job_before_the_gpu(story: Story) -> None:
    story.peers.allocator.stock(cpu=2)
    job, lease = await story.running()

    story.peers.allocator.move(lease.lease_id, "LOST", reason="NODE_LOST")
    await story.tell_lease(lease)

    async def second_run() -> bool:
        return len((await story.job(job.job_id)).runs) == 2

    await until(second_run)
    assert (await story.job(job.job_id)).runs[0].end_reason == "NODE_LOST"


@pytest.mark.parametrize(
    ("seconds", "deadline", "reason"),
    [(0, 3600, "BUDGET_EXHAUSTED"), (3600, 0, "DEADLINE_REACHED")],
)
async def test_a_job_that_may_compute_no_more_fails_in_the_queue(
    story: Story, seconds: int, deadline: int, reason: str
) -> None:
    story.peers.allocator.free["cpu"] = 0
    job = await story.launch()
    story.peers.billing.funded_seconds[job.job_id] = seconds
    story.peers.billing.deadline_seconds = deadline

    story.peers.allocator.free["cpu"] = 1
    failed = await story.comes_to(job.job_id, "FAILED")

    assert failed.end_reason == reason
    assert story.peers.allocator.of_job(job.job_id) == []


async def test_a_stop_in_the_queue_is_at_once_and_free(story: Story) -> None:
    story.peers.allocator.free["cpu"] = 0
    jobs = [await story.launch() for _ in range(3)]

    stopped = await story.stop(jobs[1].job_id)
    story.peers.allocator.free["cpu"] = 1
    await story.comes_to(jobs[0].job_id, "STARTING")

    assert stopped.state == job_pb2.JOB_STATE_STOPPED
    assert (stopped.end_reason, stopped.queue_position) == ("USER_STOPPED", 0)
    assert await story.facts(jobs[1].job_id) == [("queued", 1), ("finished", 2)]


async def test_a_stop_while_running_fixes_the_instant_and_reaches_the_allocator(
    story: Story,
) -> None:
    job, lease = await story.running()

    stopping = await story.stop(job.job_id)
    stopped = await story.comes_to(job.job_id, "STOPPED")

    # The answer may already show the end, so quick is the allocator here.
    assert stopping.state in (job_pb2.JOB_STATE_STOPPING, job_pb2.JOB_STATE_STOPPED)
    assert stopped.stop_time == stopping.stop_time
    told = story.peers.allocator.stops[0]
    assert told == (lease.lease_id, "USER_STOPPED", stopping.stop_time.ToDatetime(tzinfo=UTC))


async def test_a_stop_is_repeated_until_the_lease_is_closed(story: Story) -> None:
    story.peers.allocator.obeys_stops = False
    job, lease = await story.running()
    story.peers.allocator.is_down = True

    stopping = await story.stop(job.job_id)
    story.peers.allocator.is_down = False

    async def repeated() -> bool:
        return len(story.peers.allocator.stops) >= 3

    await until(repeated)
    assert (await story.job(job.job_id)).state == job_pb2.JOB_STATE_STOPPING
    await story.close(lease, "USER_STOPPED")
    assert (await story.comes_to(job.job_id, "STOPPED")).stop_time == stopping.stop_time


async def test_stopping_twice_changes_nothing(story: Story) -> None:
    story.peers.allocator.obeys_stops = False
    job, _ = await story.running()

    first, second = await asyncio.gather(story.stop(job.job_id), story.stop(job.job_id))

    assert (first.version, first.stop_time) == (second.version, second.stop_time)
    assert [fact for fact, _ in await story.facts(job.job_id)].count("stopping") == 1


async def test_a_stop_of_a_finished_job_answers_it_unchanged(story: Story) -> None:
    job, lease = await story.running()
    await story.close(lease, "EARLY_STOPPED")
    done = await story.comes_to(job.job_id, "SUCCEEDED")

    assert await story.stop(job.job_id) == done


async def test_a_run_that_finished_before_it_heard_of_the_stop_succeeds(story: Story) -> None:
    story.peers.allocator.obeys_stops = False
    job, lease = await story.running()

    await story.stop(job.job_id)
    await story.close(lease, "COMPLETED")

    done = await story.comes_to(job.job_id, "SUCCEEDED")
    assert [fact for fact, _ in await story.facts(job.job_id)].count("finished") == 1
    assert done.end_reason == "COMPLETED"


async def test_a_job_stopped_while_its_lease_was_asked_for_gives_the_lease_back(
    story: Story,
) -> None:
    faults.arm(story.service.faults, "scheduler.place.after_acquire", action="hang", times=None)
    job = await story.launch()

    async def granted() -> bool:
        return bool(story.peers.allocator.of_job(job.job_id))

    await until(granted)
    stopped = await story.stop(job.job_id)
    faults.disarm(story.service.faults)

    async def given_back() -> bool:
        return story.peers.allocator.free["cpu"] == 1

    await until(given_back)
    assert stopped.state == job_pb2.JOB_STATE_STOPPED
    assert (await story.job(job.job_id)).runs == []
    assert [fact for fact, _ in await story.facts(job.job_id)] == ["queued", "finished"]


async def test_a_crash_after_the_lease_was_granted_asks_for_the_same_one(story: Story) -> None:
    # No GPU at first, so that the launch is answered before the scheduler dies.
    story.peers.allocator.free["cpu"] = 0
    job = await story.launch()
    faults.arm(story.service.faults, "scheduler.place.after_acquire", action="kill")
    story.peers.allocator.free["cpu"] = 1

    async def granted() -> bool:
        return bool(story.peers.allocator.of_job(job.job_id))

    await until(granted)
    await asyncio.sleep(0.5)
    story.service.control.start()

    started = await story.comes_to(job.job_id, "STARTING")
    assert len(story.peers.allocator.leases) == len(started.runs) == 1


async def test_a_lease_that_was_closed_before_it_was_recorded_counts_as_a_run(
    story: Story,
) -> None:
    faults.arm(story.service.faults, "scheduler.place.after_acquire", action="error")
    job = await story.launch()

    async def granted() -> bool:
        return bool(story.peers.allocator.of_job(job.job_id))

    await until(granted)
    story.peers.allocator.move(
        story.peers.allocator.of_job(job.job_id)[0].lease_id, "CLOSED", reason="NODE_LOST"
    )

    async def second_run() -> bool:
        return [run.ordinal for run in (await story.job(job.job_id)).runs] == [1, 2]

    await until(second_run)


async def test_an_outage_of_the_allocator_only_delays(story: Story) -> None:
    spec = await story.user.PlanJob(scheduler_pb2.PlanJobRequest(spec=a_spec()))
    story.peers.allocator.is_down = True
    answer = await story.user.CreateJob(
        scheduler_pb2.CreateJobRequest(
            plan_digest=spec.plan.plan_digest, authorization=ALLOWED, request_id="key"
        )
    )
    await asyncio.sleep(1)
    story.peers.allocator.is_down = False

    await story.comes_to(answer.job.job_id, "STARTING")
