"""Launching: the same key makes one job, impossible requests cost nothing."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from lehr.errors import AlreadyExists, InvalidArgument, PlatformError
from lehr.money import Money
from tests.e2e.world import MAX_COST, World, eventually

HOUR = timedelta(hours=1)
QUICK = {"total_steps": 3}


async def test_a_create_whose_answer_was_lost_is_found_again(world: World) -> None:
    spec = world.spec(QUICK)
    world.stack.arm(scheduler__create__after_commit={"action": "kill"})
    limits: dict[str, Any] = {"max_cost": MAX_COST, "max_duration": HOUR, "request_id": "lost"}

    async def create() -> str:
        return (await world.client.jobs.create(spec, **limits)).job_id

    first = await eventually(create)
    second = await create()

    assert first == second
    page = await world.client.jobs.page(page_size=500)
    assert [job.job_id for job in page.jobs].count(first) == 1
    await world.rests(first)


async def test_twenty_equal_requests_at_once_make_one_job(world: World) -> None:
    spec = world.spec(QUICK, name="twenty")
    limits: dict[str, Any] = {"max_cost": MAX_COST, "max_duration": HOUR, "request_id": "twenty"}

    jobs = await asyncio.gather(*(world.client.jobs.create(spec, **limits) for _ in range(20)))

    assert len({job.job_id for job in jobs}) == 1
    await world.rests(jobs[0].job_id)


async def test_a_key_is_good_for_one_request_only(world: World) -> None:
    limits: dict[str, Any] = {"max_cost": MAX_COST, "max_duration": HOUR, "request_id": "taken"}
    first = await world.client.jobs.create(world.spec(QUICK), **limits)

    with pytest.raises(AlreadyExists):
        await world.client.jobs.create(world.spec(QUICK, name="another"), **limits)

    await world.rests(first.job_id)


async def test_a_dry_run_stores_nothing(world: World) -> None:
    before = await world.client.billing.balance()

    job = await world.client.jobs.create(
        world.spec(QUICK, name="dry"), max_cost=MAX_COST, max_duration=HOUR, dry_run=True
    )

    assert job.spec.name == "dry"
    page = await world.client.jobs.page(name_contains="dry")
    assert not page.jobs
    assert (await world.client.billing.balance()).held == before.held


async def test_nothing_is_launched_without_an_authorisation(world: World) -> None:
    nothing = Money(currency="EUR", micros=0)

    with pytest.raises(InvalidArgument, match="cost"):
        await world.client.jobs.create(world.spec(QUICK), max_cost=nothing, max_duration=HOUR)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("gpus", {"gpus": 5}),
        ("gpus", {"gpus": 0}),
        ("gpus", {"gpus": -1}),
        ("tier", {"tier": "no-such-tier"}),
        ("model", {"model": "no-such-model"}),
        ("dataset", {"dataset": "no-such-dataset"}),
        ("method", {"method": "no-such-method"}),
        ("name", {"name": "bell\x07"}),
        ("training.learning_rate", {"training": {"learning_rate": -1.0}}),
    ],
)
async def test_what_cannot_run_is_refused_with_its_field(
    world: World, field: str, change: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        await world.client.jobs.plan(world.spec(QUICK, **change))

    assert field in [one.field for one in refusal.value.fields]


async def test_an_empty_training_set_is_refused_before_anything_is_spent(world: World) -> None:
    data = {"validation_split": 0.2, "max_length": 8, "overlong": "drop"}

    with pytest.raises(PlatformError, match="0 of"):
        await world.client.jobs.plan(world.spec(data=data))


async def test_the_plan_counts_what_the_log_counts(world: World) -> None:
    data = {"validation_split": 0.2, "max_length": 18}

    plan = await world.client.jobs.plan(world.spec(QUICK, data=data))

    assert plan.data.train_count + plan.data.validation_count == 40
    assert plan.data.truncated_count > 0
    assert plan.data.max_length == 18
