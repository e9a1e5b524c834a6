"""Whatever dies, the run ends once, nothing computes unseen, and nothing stored is lost."""

from __future__ import annotations

import pytest

from tests.integration.trainer_runner.story import AgentFactory, AgentUnderTest, until

LONG = {"total_steps": 10_000, "step_seconds": 0.05}


@pytest.mark.parametrize(
    ("fate", "reason"),
    [
        ("kill", "PLATFORM_FAULT"),
        ("exit", "PLATFORM_FAULT"),
        ("oom", "OUT_OF_MEMORY"),
        ("hang", "PLATFORM_FAULT"),
    ],
)
async def test_a_trainer_that_dies_is_judged_by_how_it_died(
    agent_factory: AgentFactory, fate: str, reason: str
) -> None:
    agent = agent_factory(STALL_TIMEOUT="2")
    run = agent.wants({"total_steps": 9, "steps": {4: {"die": fate}}}, training={"save_steps": 2})

    report = await run.closes()

    assert (report.close_reason, run.committed) == (reason, [2])
    # It ended when it moved last, not when somebody noticed.
    assert report.end_age.ToTimedelta() == report.progress_age.ToTimedelta()
    assert agent.processes(run.lease_id) == []


async def test_children_of_a_dead_trainer_are_killed_before_the_device_is_clear(
    agent: AgentUnderTest,
) -> None:
    fate = {"child_processes": 3, "ignore_term": True, "steps": {4: {"die": "kill"}}}
    run = agent.wants({"total_steps": 9, **fate})

    await run.closes()

    assert agent.processes(run.lease_id) == []
    await until(lambda: agent.device().is_clear, "the device is clear")


async def test_a_model_that_does_not_exist_is_the_users_mistake(agent: AgentUnderTest) -> None:
    agent.peers.scheduler.model_id = "model_9"
    run = agent.wants(LONG)

    report = await run.closes()

    assert report.close_reason == "USER_ERROR"
    assert "there is no model model_9" in report.close_message


async def test_a_catalog_that_stays_away_is_the_platforms_fault(agent: AgentUnderTest) -> None:
    agent.peers.catalog.is_down = True
    run = agent.wants(LONG)

    report = await run.closes()

    assert (report.close_reason, report.HasField("running_age")) == ("PLATFORM_FAULT", False)


async def test_a_killed_agent_takes_its_trainer_along_and_tells_when_it_moved_last(
    agent: AgentUnderTest,
) -> None:
    run = agent.wants(LONG)
    await run.computes(5)
    incarnation = agent.peers.allocator.last.incarnation

    agent.service.control.kill()
    await until(lambda: agent.processes(run.lease_id) == [], "the trainer dies")
    agent.service.control.start()
    report = await run.closes()

    assert agent.peers.allocator.last.incarnation > incarnation
    assert report.close_reason == "NODE_LOST"
    assert report.end_age.ToTimedelta() == report.progress_age.ToTimedelta()
    assert report.end_age.ToTimedelta().total_seconds() > 0.5
    await until(lambda: agent.device().is_clear, "the device is clear")


async def test_children_that_outlive_a_killed_agent_are_found_by_their_mark(
    agent: AgentUnderTest,
) -> None:
    run = agent.wants({**LONG, "child_processes": 2, "ignore_term": True})
    await run.computes(3)

    agent.service.control.kill()
    assert len(agent.processes(run.lease_id)) >= 2
    agent.service.control.start()

    await run.closes()
    assert agent.processes(run.lease_id) == []
    assert agent.events("leftovers_killed")


async def test_a_trainer_that_the_journal_does_not_know_yet_is_found_by_its_mark(
    agent: AgentUnderTest,
) -> None:
    agent.arm("trainer_runner.spawned", action="kill")
    run = agent.wants({**LONG, "child_processes": 1, "start_seconds": 0})
    await until(lambda: not agent.service_lives(), "the agent dies")

    agent.service.control.start()

    # The run had not begun for the allocator, so it is started once more.
    await run.computes(3)
    assert len(agent.processes(run.lease_id)) == 2


async def test_an_agent_killed_in_the_middle_of_a_stop_ends_the_run_as_stopped(
    agent: AgentUnderTest,
) -> None:
    run = agent.wants({**LONG, "save_seconds": 600})
    await run.computes(3)
    run.stop()
    await until(lambda: agent.events("stop_asked"), "the trainer is asked")

    agent.service.control.kill()
    agent.service.control.start()
    report = await run.closes()

    assert report.close_reason == "USER_STOPPED"
    assert agent.processes(run.lease_id) == []


@pytest.mark.parametrize(
    "point",
    [
        "trainer_runner.checkpoint_staged",
        "trainer_runner.upload.begun",
        "trainer_runner.upload.put",
        "trainer_runner.upload.committed",
        "trainer_runner.before_close",
    ],
)
async def test_an_agent_killed_while_storing_goes_on_with_it(
    agent: AgentUnderTest, point: str
) -> None:
    agent.arm(point, action="kill")
    run = agent.wants({"total_steps": 3})
    await until(lambda: not agent.service_lives(), "the agent dies")

    agent.service.control.start()
    await run.closes()

    assert run.committed == [3]
    await until(lambda: run.steps == [1, 2, 3], "the series is whole")
    await until(lambda: agent.spools() == [], "the spool is confirmed")


async def test_an_end_that_was_on_the_disk_survives_the_agent(agent: AgentUnderTest) -> None:
    agent.peers.checkpoint_store.is_down = False
    agent.arm("trainer_runner.before_close", action="kill")
    run = agent.wants({"total_steps": 3})
    await until(lambda: not agent.service_lives(), "the agent dies")

    agent.service.control.start()
    report = await run.closes()

    assert report.close_reason == "COMPLETED"


async def test_a_lease_of_somebody_else_is_killed_and_dropped(agent: AgentUnderTest) -> None:
    run = agent.wants(LONG)
    await run.computes(3)

    del agent.peers.allocator.wanted[run.lease_id]

    await until(lambda: agent.processes(run.lease_id) == [], "the trainer is killed")
    await until(lambda: agent.device().is_clear, "the device is clear")
    await until(lambda: not agent.peers.allocator.last.leases, "nothing is told of it any more")
    assert run.lease_id not in agent.peers.allocator.closed
    assert list((agent.state_dir / "runs").iterdir()) == []


async def test_a_store_that_refuses_the_lease_ends_the_run(agent: AgentUnderTest) -> None:
    run = agent.wants(LONG, training={"save_steps": 20})
    await run.computes(3)

    agent.peers.checkpoint_store.fences[run.job_id] = run.desired.lease.epoch + 1

    await until(lambda: agent.processes(run.lease_id) == [], "the trainer is killed")
    await until(lambda: agent.device().is_clear, "the device is clear")


async def test_an_agent_with_a_newer_twin_ends_itself_and_its_trainers(
    agent: AgentUnderTest,
) -> None:
    run = agent.wants(LONG)
    await run.computes(3)

    agent.peers.allocator.fences_node = True

    await until(lambda: not agent.service_lives(), "the agent ends")
    assert agent.processes(run.lease_id) == []


async def test_a_second_agent_on_the_same_folder_is_refused(
    agent: AgentUnderTest, agent_factory: AgentFactory
) -> None:
    with pytest.raises(AssertionError, match="another agent lives in"):
        agent_factory(STATE_DIR=str(agent.state_dir))
