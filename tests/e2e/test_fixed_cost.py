"""BL-07 of the requirements: after its end a job costs the same, whoever asks, whenever."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from lehr.api.billing.v1 import billing_pb2
from lehr.api.scheduler.v1 import job_pb2
from tests.e2e.audit import is_billed_by_its_leases, rows
from tests.e2e.test_life_of_a_job import losses
from tests.e2e.world import World

STEP_SECONDS = 0.1
#: By the reason of the end: state, script, and the last step that is paid for.
ENDS: Mapping[str, tuple[int, dict[str, Any], int]] = {
    "COMPLETED": (job_pb2.JOB_STATE_SUCCEEDED, {"total_steps": 40}, 40),
    "EARLY_STOPPED": (
        job_pb2.JOB_STATE_SUCCEEDED,
        {"total_steps": 100, "steps": losses("10:1.0 20:2.0 30:2.0 40:2.0")},
        40,
    ),
    "OUT_OF_MEMORY": (
        job_pb2.JOB_STATE_FAILED,
        {"total_steps": 100, "steps": {41: {"die": "oom"}}},
        40,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a job costs, as its page and its statement have it."""

    micros: int
    billed_seconds: int
    lines: tuple[tuple[str, int, int], ...]
    """Tier, seconds and micros of each line."""
    statement_micros: int


async def read(world: World, job_id: str) -> Reading:
    """Read the cost of a job in every place."""
    cost = await world.client.jobs.cost(job_id)
    page = await world.client.billing.ledger(job_id=job_id, page_size=500)
    signs = {"charge": 1, "refund": -1}
    statement = sum(signs.get(one.kind, 0) * debited(one) for one in page.transactions)
    return Reading(
        micros=cost.total.micros,
        billed_seconds=cost.billed_seconds,
        lines=tuple((one.tier, one.billed_seconds, one.amount.micros) for one in cost.lines),
        statement_micros=statement,
    )


def debited(transaction: billing_pb2.LedgerTransaction) -> int:
    """Return what a booking moves, in micros."""
    return sum(one.amount.micros for one in transaction.entries if one.side == "debit")


async def settled_total(world: World, job: job_pb2.Job) -> int:
    """Return what the event of the last charge says, in micros."""
    # The broker's clock is not moved with that of the services.
    since = job.create_time.ToDatetime() - timedelta(days=9)
    async for event in world.client.events.tail(types=["lehr.charge.settled."], since=since):
        if event["data"]["job_id"] == job.job_id:
            return int(event["data"]["total_micros"])
    raise AssertionError("the events have an end")


async def pass_time(world: World, amount: timedelta) -> None:
    """Move the clock of all services."""
    await rows(world, "UPDATE clock.shift SET amount = amount + $1 RETURNING 1", amount)


async def stays_the_same(world: World, job: job_pb2.Job) -> Reading:
    """Read a settled job at once, a minute and 14 hours later; everything is equal everywhere."""
    await world.settled(job.job_id)
    at_once = await read(world, job.job_id)
    assert at_once.statement_micros == at_once.micros == sum(line[2] for line in at_once.lines)
    assert at_once.billed_seconds == sum(line[1] for line in at_once.lines)
    assert await settled_total(world, job) == at_once.micros
    for later in (timedelta(minutes=1), timedelta(hours=14)):
        await pass_time(world, later)
        assert await read(world, job.job_id) == at_once
    await is_billed_by_its_leases(world, job.job_id)
    await world.proves_clean()
    return at_once


@pytest.mark.parametrize("reason", ENDS)
async def test_a_job_that_ended_by_itself_costs_up_to_its_last_step_or_save(
    world: World, reason: str
) -> None:
    state, script, last = ENDS[reason]
    job_id = await world.launch(
        {"step_seconds": STEP_SECONDS, **script}, early_stopping={"patience": 3}
    )

    job = await world.rests(job_id)
    reading = await stays_the_same(world, job)

    assert (job.state, job.end_reason, job.progress.step) == (state, reason, last)
    ran = (job.finish_time.ToDatetime() - job.start_time.ToDatetime()).total_seconds()
    assert last * STEP_SECONDS - 1 <= reading.billed_seconds <= ran


@pytest.mark.parametrize(
    ("run_seconds", "shutdown_seconds"),
    [(8, 6), pytest.param(100, 40, marks=pytest.mark.slow)],
)
async def test_a_stopped_job_costs_what_it_cost_at_the_stop_however_long_the_shutdown(
    world: World, run_seconds: int, shutdown_seconds: int
) -> None:
    job_id = await world.launch(
        {"total_steps": 9000, "step_seconds": STEP_SECONDS, "save_seconds": shutdown_seconds},
        training={"save_steps": 9000, "eval_steps": 9000},
    )
    running = await world.until(job_id, lambda job: job.state == job_pb2.JOB_STATE_RUNNING)
    await asyncio.sleep(run_seconds)

    stopping = await world.client.jobs.stop(job_id)
    costs = [await world.client.jobs.cost(job_id)]
    while (await world.client.jobs.get(job_id)).state == job_pb2.JOB_STATE_STOPPING:
        costs.append(await world.client.jobs.cost(job_id))
        await asyncio.sleep(0.5)
    job = await world.rests(job_id, within=120)
    reading = await stays_the_same(world, job)

    ran = (stopping.stop_time.ToDatetime() - running.start_time.ToDatetime()).total_seconds()
    took = (job.finish_time.ToDatetime() - stopping.stop_time.ToDatetime()).total_seconds()
    assert took > shutdown_seconds
    assert run_seconds - 1 <= reading.billed_seconds <= ran
    assert {cost.total.micros for cost in costs} == {reading.micros}
    assert {cost.billed_seconds for cost in costs} == {reading.billed_seconds}
