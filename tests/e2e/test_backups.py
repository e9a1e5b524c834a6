"""When the first choice cannot be had: the next tier is tried, in the order listed."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from lehr import faults
from lehr.api.scheduler.v1 import job_pb2
from lehr.money import Money
from lehr.stack import Node
from tests.e2e.audit import holds_nothing, leases_of, node_of
from tests.e2e.world import World, eventually
from tests.support.stack import StackFactory, StackUnderTest

H, L, S = "h100-80gb", "l40s-48gb", "l4-24gb"
TINY_BYTES = 1000
LONG = {"total_steps": 3000, "step_seconds": 0.1}
BACKUPS: dict[str, Any] = {"tier": H, "backup_tiers": [L, S], "backup_after_seconds": 1}
WAIT_SECONDS = 60.0
ERRORS = 12
"""More than one call repeats by itself."""
TIERS = Path(__file__).parents[2] / "deploy" / "tiers.yaml"


@pytest.fixture(scope="module")
def stack(stack_factory: StackFactory, tmp_path_factory: pytest.TempPathFactory) -> StackUnderTest:
    """A node for each tier; of S each GPU has next to no memory. Silence counts after seconds."""
    tiers = yaml.safe_load(TIERS.read_text(encoding="utf-8"))
    tiers["tiers"][S]["memory_bytes"] = TINY_BYTES
    file = tmp_path_factory.mktemp("tiers") / "tiers.yaml"
    file.write_text(yaml.safe_dump(tiers), encoding="utf-8")
    return stack_factory(
        nodes=tuple(
            Node(name=name, cpu_slots=0, pretend_gpus=f"{tier}:1")
            for name, tier in (("h", H), ("l", L), ("s", S))
        ),
        environment={
            "scheduler": {"SCHEDULER_BACKOFF_SECONDS": "0.5"},
            "gpu_allocator": {
                "GPU_ALLOCATOR_TIERS_FILE": str(file),
                "GPU_ALLOCATOR_LEASE_TTL": "8",
                "GPU_ALLOCATOR_NODE_FRESH": "4",
                "GPU_ALLOCATOR_UNSEEN_LIMIT": "4",
            },
            "trainer_runner": {"TRAINER_RUNNER_UNCONFIRMED_AFTER": "4"},
        },
    )


async def runs_on(world: World, job_id: str) -> str:
    """Wait until a job computes, and return its tier."""
    await world.until(
        job_id, lambda job: job.state == job_pb2.JOB_STATE_RUNNING, within=WAIT_SECONDS
    )
    return (await leases_of(world, job_id))[-1].tier


async def is_absent(world: World, tier: str) -> bool | None:
    """Tell whether no GPU of a tier can be granted."""
    free = {one.tier: one.free_count for one in await world.client.gpus.tiers()}
    return True if not free[tier] else None


async def stop(world: World, job_id: str) -> None:
    """Stop a job and wait until nothing is held."""
    await world.client.jobs.stop(job_id)
    await world.rests(job_id)
    await holds_nothing(world)
    await world.proves_clean()


@pytest.mark.parametrize("known", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_node_that_does_not_answer_sends_its_jobs_to_the_backup(
    world: World, known: bool
) -> None:
    world.stack.pause("trainer_runner@h")
    try:
        if known:
            await eventually(lambda: is_absent(world, H))
        job_id = await world.launch(LONG, name=f"unreachable, known {known}", **BACKUPS)

        assert await runs_on(world, job_id) == L
        assert await node_of(world, job_id) == "l"
    finally:
        world.stack.resume("trainer_runner@h")
    # Long enough on the backup for a bill, and with the first choice back.
    job = await world.reaches(job_id, 40)
    assert (job.runs[-1].tier, job.runs[-1].end_reason) == (L, "")
    await stop(world, job_id)
    # The bill is at the price of the GPU that was really used.
    assert [line.tier for line in (await world.settled(job_id)).lines] == [L]


@pytest.mark.slow
async def test_an_allocator_that_fails_for_a_while_loses_no_job(world: World) -> None:
    file = world.stack.stack.layout.faults
    faults.arm(file, "gpu_allocator.acquire.before_commit", action="error", times=ERRORS)
    try:
        job_id = await world.launch(LONG, name="unknown error", **BACKUPS)

        assert await runs_on(world, job_id) in (H, L)
        assert faults.fired(file, "gpu_allocator.acquire.before_commit") == ERRORS
    finally:
        faults.disarm(file)
    assert len(await leases_of(world, job_id)) == 1
    await stop(world, job_id)


async def test_a_tier_that_the_budget_does_not_reach_is_passed_over(world: World) -> None:
    quote = await world.client.billing.quote([H, L])
    price = {rate.tier: rate.price_per_gpu_hour.micros for rate in quote.rates}
    # Enough for a second on L, and not for one on H.
    limit = Money(currency="EUR", micros=price[L] // 3600 + 1)
    assert limit.micros < price[H] // 3600
    spec = world.spec(LONG, name="small purse", **BACKUPS)
    launched = await world.client.jobs.create(spec, max_cost=limit, max_duration=timedelta(hours=1))

    job = await world.rests(launched.job_id)

    assert [lease.tier for lease in await leases_of(world, job.job_id)] == [L]
    assert job.end_reason == "BUDGET_EXHAUSTED"
    assert (await world.settled(job.job_id)).total.micros <= limit.micros
    await holds_nothing(world)
    await world.proves_clean()


async def test_a_backup_that_is_too_small_is_named_before_the_launch(world: World) -> None:
    plan = await world.client.jobs.plan(world.spec(**BACKUPS))

    told = [warning for warning in plan.warnings if "may run out of memory" in warning]
    assert len(told) == 1
    assert told[0].startswith(S)
    assert [offer.tier for offer in plan.tiers] == [H, L, S]
    assert plan.estimate.cost_low.micros < plan.estimate.cost_high.micros
