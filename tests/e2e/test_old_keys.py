"""ID-01 of the requirements: a create is repeated at once and 25 hours later, and makes one job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from lehr.api.scheduler.v1 import job_pb2
from tests.e2e.audit import is_billed_by_its_leases, leases_of, rows
from tests.e2e.world import MAX_COST, World, eventually

HOUR = timedelta(hours=1)
LATER = timedelta(hours=25)


async def test_a_create_is_repeated_after_a_lost_answer_and_25_hours_later(world: World) -> None:
    spec = world.spec({"total_steps": 3}, name="repeated")
    limits: dict[str, Any] = {"max_cost": MAX_COST, "max_duration": HOUR, "request_id": "K"}

    async def create() -> job_pb2.Job:
        return await world.client.jobs.create(spec, **limits)

    # The answer is lost after all is stored; the sender tries again.
    world.stack.arm(scheduler__create__after_commit={"action": "kill"})
    first = await eventually(create)
    second = await create()
    job = await world.rests(first.job_id)
    cost = await world.settled(first.job_id)
    before = await now(world)
    await rows(world, "UPDATE clock.shift SET amount = amount + $1 RETURNING 1", LATER)
    third = await create()

    assert await now(world) - before >= LATER
    assert first.job_id == second.job_id == third.job_id
    assert (third.state, third.version) == (job.state, job.version)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED
    page = await world.client.jobs.page(name_contains="repeated")
    assert [one.job_id for one in page.jobs] == [first.job_id]
    assert len(await leases_of(world, first.job_id)) == 1
    for table in ("billing.holds", "billing.usage_records"):
        query = f"SELECT count(*) FROM {table} WHERE job_id = $1"  # noqa: S608
        assert [list(row) for row in await rows(world, query, first.job_id)] == [[1]]
    assert (await world.client.jobs.cost(first.job_id)).total == cost.total
    await is_billed_by_its_leases(world, first.job_id)


async def now(world: World) -> Any:
    """Return what the clock of the services says."""
    [[found]] = await rows(world, "SELECT clock.now()")
    return found


async def test_the_same_body_without_a_key_of_ones_own_makes_two_jobs(world: World) -> None:
    spec = world.spec({"total_steps": 3}, name="keyless")

    made = [
        await world.client.jobs.create(spec, max_cost=MAX_COST, max_duration=HOUR) for _ in range(2)
    ]

    assert len({one.job_id for one in made}) == 2
    for one in made:
        await world.rests(one.job_id)
