"""One scripted job through all services: states, series, checkpoints, log, bill."""

import json

from lehr.api.scheduler.v1 import job_pb2
from tests.e2e.world import World


def losses(text: str) -> dict[int, dict[str, float | str]]:
    """Read ``10:2.00 20:NaN`` as evaluations by step."""
    pairs = (word.split(":") for word in text.split())
    return {int(step): {"eval_loss": value} for step, value in pairs}


def script(text: str, total_steps: int = 200) -> dict[str, object]:
    """Return a script with these validation losses."""
    return {"total_steps": total_steps, "step_seconds": 0.04, "steps": losses(text)}


async def test_a_job_ends_with_all_its_steps_a_final_checkpoint_and_a_bill(world: World) -> None:
    job_id = await world.launch({"total_steps": 20, "step_seconds": 0.1})

    job = await world.rests(job_id)
    cost = await world.settled(job_id)

    assert (job.state, job.end_reason) == (job_pb2.JOB_STATE_SUCCEEDED, "COMPLETED")
    await world.has_steps(job_id, 20)
    assert "final" in (await world.saved(job_id))[20]
    assert 1 <= cost.billed_seconds <= 10
    assert cost.total.micros == sum(line.amount.micros for line in cost.lines)
    await world.proves_clean()


async def test_best_survives_pruning_and_an_early_stop_is_a_success(world: World) -> None:
    series = "10:2.00 20:1.20 30:1.50 40:1.60 50:1.70 60:1.80 70:1.90"
    job_id = await world.launch(script(series), early_stopping={"patience": 5})

    job = await world.rests(job_id)
    saved = await world.saved(job_id)

    assert (job.state, job.end_reason) == (job_pb2.JOB_STATE_SUCCEEDED, "EARLY_STOPPED")
    assert (job.progress.best_step, max(saved)) == (20, 70)
    assert (saved[20], saved[70]) == ("best", "final")
    assert 60 in saved
    assert set(saved) <= {20, 50, 60, 70}
    assert "step 20" in await world.log(job_id)


async def test_a_loss_that_is_not_finite_is_never_best(world: World) -> None:
    series = "10:1.80 20:-Infinity 30:Infinity 40:1.90"
    job_id = await world.launch(script(series), early_stopping={"patience": 3})

    job = await world.rests(job_id)
    evaluated = await world.steps(job_id, "eval_loss")

    assert (job.progress.best_step, job.end_reason) == (10, "EARLY_STOPPED")
    assert (evaluated[20], evaluated[30]) == ("-Infinity", "Infinity")
    assert float(evaluated[40]) == 1.9


async def test_without_any_finite_loss_there_is_no_best(world: World) -> None:
    job_id = await world.launch(script("10:NaN 20:NaN 30:NaN"), early_stopping={"patience": 3})

    job = await world.rests(job_id)

    assert not job.progress.HasField("best_step")
    assert "best" not in " ".join((await world.saved(job_id)).values())


async def test_only_evaluations_in_a_row_count_and_ties_keep_the_earlier(world: World) -> None:
    series = "10:2.00 20:2.10 30:2.20 40:1.90 50:2.00 60:2.05 70:1.80 80:1.85 90:1.90 100:1.80"
    job_id = await world.launch(script(series), early_stopping={"patience": 3})

    job = await world.rests(job_id)

    assert (job.progress.step, job.progress.best_step) == (100, 70)


async def test_numbers_that_are_not_finite_arrive_exactly(world: World) -> None:
    values = ["1.0", "NaN", "Infinity", "-Infinity", "0.5", "1e-320", "1e308"]
    steps = {number: {"loss": value} for number, value in enumerate(values, start=1)}
    steps[2]["grad_norm"] = "NaN"
    job_id = await world.launch({"total_steps": 7, "steps": steps})

    job = await world.rests(job_id)
    found = await world.has_steps(job_id, 7)
    streamed: dict[int, str] = {}
    async for point in world.client.jobs.watch_metrics(job_id, names=["loss"]):
        streamed[point.step] = point.value
        if point.step == 7:
            break
    told: dict[int, str] = {}
    since = job.create_time.ToDatetime()
    async for event in world.client.events.tail(types=["lehr.run."], job_id=job_id, since=since):
        json.dumps(event, allow_nan=False)
        told |= {one["step"]: one["values"]["loss"] for one in event["data"].get("points", ())}
        if 7 in told:
            break

    assert [found[step] for step in (2, 3, 4)] == ["NaN", "Infinity", "-Infinity"]
    assert [float(found[step]) for step in (1, 5, 6, 7)] == [1.0, 0.5, 1e-320, 1e308]
    assert await world.steps(job_id, "grad_norm") == {2: "NaN"}
    assert streamed == found
    assert [told[step] for step in (2, 3, 4)] == ["NaN", "Infinity", "-Infinity"]
    log = await world.log(job_id)
    assert "step 2: loss is nan, not a finite number" in log
    assert "step 2: grad_norm is nan" in log


async def test_events_tell_the_whole_story_in_order(world: World) -> None:
    # A job that is over before its node is next heard of goes from starting to finished.
    job_id = await world.launch({"total_steps": 10, "step_seconds": 0.5})
    told: list[str] = []

    await world.rests(job_id)
    since = (await world.client.jobs.get(job_id)).create_time.ToDatetime()
    async for event in world.client.events.tail(types=["lehr.job."], job_id=job_id, since=since):
        told.append(event["type"].removeprefix("lehr.job.").removesuffix(".v1"))
        json.dumps(event, allow_nan=False)
        if told[-1] == "finished":
            break

    assert told == ["queued", "starting", "running", "finished"]
