"""Stop in every state, at once and free from then on; resume continues exactly where it was."""

import asyncio
from datetime import timedelta

import pytest

from lehr.api.scheduler.v1 import job_pb2
from lehr.errors import FailedPrecondition
from lehr.money import Money
from tests.e2e.world import World

SLOW = {"total_steps": 600, "step_seconds": 0.1}


async def test_a_queued_job_stops_at_once_and_costs_nothing(world: World) -> None:
    running = await world.launch(SLOW)
    await world.until(running, lambda job: job.state == job_pb2.JOB_STATE_RUNNING)
    waiting = await world.launch(SLOW)

    stopped = await world.client.jobs.stop(waiting)
    again = await world.client.jobs.stop(waiting)
    await world.client.jobs.stop(running)

    assert stopped.state == again.state == job_pb2.JOB_STATE_STOPPED
    assert stopped.version == again.version
    assert (await world.settled(waiting)).billed_seconds == 0
    await world.rests(running)


async def test_of_three_that_wait_the_stopped_one_is_passed_over_and_the_others_keep_their_order(
    world: World,
) -> None:
    busy = await world.launch(SLOW, name="busy")
    await world.until(busy, lambda job: job.state == job_pb2.JOB_STATE_RUNNING)
    first, second, third = [await world.launch({"total_steps": 20}, name=name) for name in "ABC"]

    stopped = await world.client.jobs.stop(second)
    passed = [job.state async for job in world.client.jobs.watch(second)]
    await world.client.jobs.stop(busy)
    ended = [await world.rests(job_id) for job_id in (busy, first, third)]
    after = await world.client.jobs.get(second)

    assert stopped.state == job_pb2.JOB_STATE_STOPPED
    assert passed == [job_pb2.JOB_STATE_STOPPED]
    assert (after.version, list(after.runs)) == (stopped.version, [])
    assert not after.HasField("start_time")
    assert await world.log(second) == ""
    assert (await world.settled(second)).billed_seconds == 0
    assert [job.end_reason for job in ended] == ["USER_STOPPED", "COMPLETED", "COMPLETED"]
    ran = [(job.start_time.ToDatetime(), job.finish_time.ToDatetime()) for job in ended]
    assert ran == sorted(ran)
    await world.proves_clean()


async def test_a_starting_job_stops_and_costs_nothing(world: World) -> None:
    job_id = await world.launch({**SLOW, "start_seconds": 60})
    await world.until(job_id, lambda job: job.state == job_pb2.JOB_STATE_STARTING)

    await world.client.jobs.stop(job_id)
    job = await world.rests(job_id, within=40)

    assert job.state == job_pb2.JOB_STATE_STOPPED
    assert (await world.settled(job_id)).billed_seconds == 0
    await world.proves_clean()


async def test_a_running_job_is_billed_until_its_stop_and_no_longer(world: World) -> None:
    job_id = await world.launch({**SLOW, "save_seconds": 4})
    running = await world.reaches(job_id, 25)

    stopping, _ = await asyncio.gather(
        world.client.jobs.stop(job_id), world.client.jobs.stop(job_id)
    )
    job = await world.rests(job_id)
    cost = await world.settled(job_id)

    assert stopping.state == job_pb2.JOB_STATE_STOPPING
    assert (job.state, job.end_reason) == (job_pb2.JOB_STATE_STOPPED, "USER_STOPPED")
    ran = stopping.stop_time.ToDatetime() - running.start_time.ToDatetime()
    assert ran.total_seconds() - 2 <= cost.billed_seconds <= ran.total_seconds()
    await asyncio.sleep(3)
    assert (await world.client.jobs.cost(job_id)).total == cost.total
    await world.proves_clean()


async def test_a_step_that_goes_on_after_the_stop_is_not_kept(world: World) -> None:
    job_id = await world.launch({"total_steps": 4, "steps": {2: {"sleep_seconds": 8}}})
    await world.reaches(job_id, 1)

    await world.client.jobs.stop(job_id)
    job = await world.rests(job_id)
    first = await world.settled(job_id)
    saved = await world.saved(job_id)
    await world.client.jobs.resume(job_id)
    await world.rests(job_id)
    cost = await world.settled(job_id)

    assert (job.progress.step, sorted(saved)) == (1, [1])
    await world.has_steps(job_id, 4)
    # Whoever has the step has paid for all of it.
    assert cost.billed_seconds - first.billed_seconds >= 8
    await world.proves_clean()


async def test_a_job_stopped_within_its_first_step_has_computed_nothing(world: World) -> None:
    job_id = await world.launch({"total_steps": 4, "step_seconds": 8})
    await world.until(job_id, lambda job: job.state == job_pb2.JOB_STATE_RUNNING)

    await world.client.jobs.stop(job_id)
    job = await world.rests(job_id)

    assert (job.progress.step, await world.saved(job_id)) == (0, {})
    with pytest.raises(FailedPrecondition) as refused:
        await world.client.jobs.resume(job_id)
    assert refused.value.reason == "NOTHING_TO_RESUME"
    await world.settled(job_id)


async def test_a_step_that_is_not_paid_for_to_its_end_is_not_kept(world: World) -> None:
    rates = {one.tier: one for one in (await world.client.billing.quote(["cpu"])).rates}
    per_hour = rates["cpu"].price_per_gpu_hour.micros
    launched = await world.client.jobs.create(
        world.spec({"total_steps": 4, "steps": {2: {"sleep_seconds": 12}}}),
        max_cost=Money(currency="EUR", micros=-(-per_hour * 4 // 3600)),
        max_duration=timedelta(hours=1),
    )

    job = await world.rests(launched.job_id)

    assert (job.end_reason, job.progress.step) == ("BUDGET_EXHAUSTED", 1)
    assert sorted(await world.saved(launched.job_id)) == [1]
    await world.settled(launched.job_id)
    await world.proves_clean()


async def test_a_finished_job_is_left_alone(world: World) -> None:
    job_id = await world.launch({"total_steps": 5})
    before = await world.rests(job_id)

    stopped = await world.client.jobs.stop(job_id)
    with pytest.raises(FailedPrecondition, match="SUCCEEDED"):
        await world.client.jobs.resume(job_id)

    assert (stopped.state, stopped.version) == (before.state, before.version)


async def test_a_job_that_never_saved_has_nothing_to_resume_from(world: World) -> None:
    job_id = await world.launch({**SLOW, "start_seconds": 60})
    await world.until(job_id, lambda job: job.state == job_pb2.JOB_STATE_STARTING)
    await world.client.jobs.stop(job_id)
    await world.rests(job_id)

    with pytest.raises(FailedPrecondition, match="checkpoint"):
        await world.client.jobs.resume(job_id)


async def test_a_resumed_job_has_every_step_once_and_two_price_lines(world: World) -> None:
    job_id = await world.launch({"total_steps": 60, "step_seconds": 0.1})
    await world.reaches(job_id, 25)
    await world.client.jobs.stop(job_id)
    stopped = await world.rests(job_id)
    first = await world.settled(job_id)

    resumed = await world.client.jobs.resume(job_id, request_id="again")
    replayed = await world.client.jobs.resume(job_id, request_id="again")
    job = await world.rests(job_id)
    cost = await world.settled(job_id)

    assert stopped.state == job_pb2.JOB_STATE_STOPPED
    assert resumed.job_id == replayed.job_id == job_id
    assert (job.state, len(job.runs)) == (job_pb2.JOB_STATE_SUCCEEDED, 2)
    await world.has_steps(job_id, 60)
    assert cost.billed_seconds > first.billed_seconds
    await world.proves_clean()


async def test_a_job_stops_by_itself_when_its_money_is_used_up(world: World) -> None:
    rates = {one.tier: one for one in (await world.client.billing.quote(["cpu"])).rates}
    per_hour = rates["cpu"].price_per_gpu_hour.micros
    spec = world.spec(SLOW)
    limit = Money(currency="EUR", micros=-(-per_hour * 6 // 3600))
    launched = await world.client.jobs.create(spec, max_cost=limit, max_duration=timedelta(hours=1))

    job = await world.rests(launched.job_id)
    cost = await world.settled(launched.job_id)

    assert job.end_reason == "BUDGET_EXHAUSTED"
    assert cost.total.micros <= limit.micros
    assert await world.saved(launched.job_id)
    await world.proves_clean()
