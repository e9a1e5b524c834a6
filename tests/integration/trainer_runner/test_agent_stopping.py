"""A run stops when it is told to, when its money or time is up, and however its trainer resists."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.integration.trainer_runner.story import AgentFactory, AgentUnderTest, until
from tests.support.fakes_trainer_runner import lasting

LONG = {"total_steps": 10_000, "step_seconds": 0.05}


async def test_a_stopped_run_saves_and_its_checkpoint_is_stored(agent: AgentUnderTest) -> None:
    run = agent.wants(LONG, training={"save_steps": 5000, "eval_steps": 5000})
    await run.computes(3)

    run.stop()
    report = await run.closes()

    assert report.close_reason == "USER_STOPPED"
    assert len(run.committed) == 1
    await until(lambda: run.steps[-1:] == run.committed, "the series ends at the checkpoint")


async def test_a_run_that_has_not_begun_is_stopped_at_once(agent: AgentUnderTest) -> None:
    run = agent.wants({**LONG, "start_seconds": 600})
    await until(lambda: agent.processes(run.lease_id), "the trainer was started")

    run.stop()
    report = await run.closes()

    assert report.close_reason == "USER_STOPPED"
    assert not report.HasField("running_age")
    assert agent.processes(run.lease_id) == []


async def test_a_run_is_stopped_while_it_waits_for_its_model(agent: AgentUnderTest) -> None:
    agent.peers.catalog.is_down = True
    run = agent.wants(LONG)
    await until(lambda: agent.peers.catalog.asked > 0, "the model is asked for")

    run.stop()
    report = await run.closes()

    assert (report.close_reason, report.HasField("running_age")) == ("USER_STOPPED", False)


async def test_a_lease_that_is_to_stop_from_the_start_never_runs(agent: AgentUnderTest) -> None:
    run = agent.wants(LONG)
    run.stop()

    report = await run.closes()

    assert (report.close_reason, report.HasField("running_age")) == ("USER_STOPPED", False)


async def test_a_trainer_that_resists_is_killed_with_all_its_children(
    agent_factory: AgentFactory,
) -> None:
    agent = agent_factory(STOP_GRACE="1")
    deaf = {"steps": {2: {"die": "ignore_stop"}}, "ignore_term": True, "child_processes": 3}
    run = agent.wants({**LONG, **deaf})
    await run.computes(3)
    assert len(agent.processes(run.lease_id)) == 4

    asked = time.monotonic()
    run.stop()
    report = await run.closes()

    assert report.close_reason == "USER_STOPPED"
    assert 2.0 <= time.monotonic() - asked < 8.0
    assert agent.processes(run.lease_id) == []
    await until(lambda: agent.device().is_clear, "the device is clear")


async def test_a_trainer_that_hears_nothing_but_signals_is_terminated(
    agent_factory: AgentFactory,
) -> None:
    agent = agent_factory(STOP_GRACE="1", KILL_AFTER="60")
    run = agent.wants({**LONG, "steps": {2: {"die": "ignore_stop"}}})
    await run.computes(3)

    run.stop()
    report = await run.closes()

    assert report.close_reason == "USER_STOPPED"


@pytest.mark.parametrize(
    ("limit", "reason"),
    [("funded_duration", "BUDGET_EXHAUSTED"), ("deadline_duration", "DEADLINE_REACHED")],
)
async def test_a_limit_is_kept_although_nobody_can_be_asked(
    agent: AgentUnderTest, limit: str, reason: str
) -> None:
    run = agent.wants(LONG)
    getattr(run.desired, limit).CopyFrom(lasting(2.5))
    await run.reaches("RUNNING")
    agent.peers.allocator.is_down = True

    await asyncio.sleep(4.0)
    agent.peers.allocator.is_down = False
    report = await run.closes()

    assert report.close_reason == reason
    computed = report.running_age.ToTimedelta() - report.end_age.ToTimedelta()
    assert 1.0 < computed.total_seconds() <= 2.6


async def test_funding_that_grows_is_not_noticed(agent: AgentUnderTest) -> None:
    run = agent.wants({"total_steps": 60, "step_seconds": 0.05})
    run.desired.funded_duration.CopyFrom(lasting(2.5))
    await run.reaches("RUNNING")

    run.desired.funded_duration.CopyFrom(lasting(3600))
    report = await run.closes()

    assert report.close_reason == "COMPLETED"


async def test_a_stop_that_comes_after_the_end_changes_nothing(agent: AgentUnderTest) -> None:
    agent.peers.checkpoint_store.refuses_commits = 2
    run = agent.wants({"total_steps": 2})
    await run.reaches("DRAINING")

    run.stop()
    report = await run.closes()

    assert (report.close_reason, run.committed) == ("COMPLETED", [2])
