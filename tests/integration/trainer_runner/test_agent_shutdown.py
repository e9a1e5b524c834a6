"""An agent that is told to go lets its trainers save, tells how they ended, and goes."""

from __future__ import annotations

import asyncio

from tests.integration.trainer_runner.story import AgentFactory, AgentUnderTest

LONG = {"total_steps": 10_000, "step_seconds": 0.05}


async def test_trainers_save_and_their_leases_close_before_the_agent_goes(
    agent: AgentUnderTest,
) -> None:
    run = agent.wants(LONG)
    await run.computes(3)

    await asyncio.to_thread(agent.service.control.stop)

    assert agent.peers.allocator.closed[run.lease_id].close_reason == "PREEMPTED"
    assert len(run.committed) == 1
    assert agent.peers.allocator.last.is_draining
    assert agent.processes(run.lease_id) == []


async def test_a_trainer_that_does_not_hurry_is_killed_when_the_grace_is_over(
    agent_factory: AgentFactory,
) -> None:
    agent = agent_factory(SHUTDOWN_GRACE="1")
    run = agent.wants({**LONG, "save_seconds": 600})
    await run.computes(3)

    await asyncio.to_thread(agent.service.control.stop)

    assert agent.processes(run.lease_id) == []
    assert agent.service_lives() is False


async def test_what_could_not_be_stored_in_time_is_stored_by_the_next_life(
    agent_factory: AgentFactory,
) -> None:
    agent = agent_factory(SHUTDOWN_GRACE="2")
    run = agent.wants(LONG)
    await run.computes(3)
    agent.peers.checkpoint_store.is_down = True

    await asyncio.to_thread(agent.service.control.stop)
    agent.peers.checkpoint_store.is_down = False
    agent.service.control.start()
    report = await run.closes()

    assert report.close_reason == "PREEMPTED"
    assert len(run.committed) == 1
