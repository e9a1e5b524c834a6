"""Peers and servers that are away delay what is told, never what is computed."""

from __future__ import annotations

import asyncio
import itertools

from tests.integration.trainer_runner.story import AgentFactory, AgentUnderTest, until
from tests.support.servers import NatsForTests, ObjectsForTests


async def test_reports_survive_a_broker_that_is_away(
    agent: AgentUnderTest, nats_server: NatsForTests
) -> None:
    noisy = {str(step): {"print_bytes_base64": "aGVsbG8K"} for step in range(1, 101)}
    run = agent.wants({"total_steps": 100, "step_seconds": 0.03, "steps": noisy})
    await run.computes(3)

    nats_server.control.kill()
    report = await run.closes()
    nats_server.control.start()

    assert report.close_reason == "COMPLETED"
    await until(lambda: agent.spools() == [], "the spool is confirmed")
    assert run.steps == list(range(1, 101))
    assert run.log.count("hello") == 100


async def test_reports_that_a_stream_has_lost_are_said_again(agent: AgentUnderTest) -> None:
    telemetry = agent.peers.telemetry
    telemetry.is_deaf = True
    run = agent.wants({"total_steps": 20, "step_seconds": 0.01})
    await run.closes()
    await asyncio.sleep(1.0)
    await telemetry.catch_up()
    first_ids = set(telemetry.message_ids)

    telemetry.reports.clear()
    telemetry.lines.clear()
    telemetry.is_deaf = False

    await until(lambda: agent.spools() == [], "the spool is confirmed")
    assert run.steps == list(range(1, 21))
    again = set(telemetry.message_ids) - first_ids
    assert again


async def test_a_telemetry_that_is_away_is_waited_for(agent: AgentUnderTest) -> None:
    run = agent.wants({"total_steps": 30, "step_seconds": 0.05})
    await run.computes(2)
    agent.peers.telemetry.is_down = True

    report = await run.closes()
    agent.peers.telemetry.is_down = False

    assert report.close_reason == "COMPLETED"
    await until(lambda: agent.spools() == [], "the spool is confirmed")
    assert run.steps == list(range(1, 31))


async def test_a_store_that_is_away_stops_no_training_and_leaves_ordinary_ones_out(
    agent: AgentUnderTest,
) -> None:
    run = agent.wants(
        {"total_steps": 20, "step_seconds": 0.05}, training={"save_steps": 2, "eval_steps": 1000}
    )
    await run.reaches("RUNNING")
    agent.peers.checkpoint_store.is_down = True
    before = len(run.committed)

    report = await run.reaches("DRAINING")
    assert agent.device().is_clear
    await until(lambda: any("not yet durable" in line for line in run.log), "the log says so")
    agent.peers.checkpoint_store.is_down = False
    report = await run.closes()

    assert report.close_reason == "COMPLETED"
    assert 20 in run.committed
    assert len(run.committed) <= before + 3
    await until(lambda: any("was left out" in line for line in run.log), "the log says so")


async def test_a_killed_object_server_is_waited_for(
    agent: AgentUnderTest, s3: ObjectsForTests
) -> None:
    run = agent.wants({"total_steps": 40, "step_seconds": 0.1, "checkpoint_bytes": 5_000_000})
    await run.computes(2)

    s3.control.kill()
    await run.reaches("DRAINING")
    s3.control.start()
    report = await run.closes()

    assert (report.close_reason, run.committed) == ("COMPLETED", [40])


async def test_a_commit_that_is_refused_is_uploaded_anew(agent: AgentUnderTest) -> None:
    agent.peers.checkpoint_store.refuses_commits = 2
    run = agent.wants({"total_steps": 2})

    report = await run.closes()

    assert (report.close_reason, run.committed) == ("COMPLETED", [2])


async def test_a_final_checkpoint_that_cannot_be_stored_is_the_platforms_fault(
    agent: AgentUnderTest,
) -> None:
    agent.peers.checkpoint_store.refuses_commits = 99
    run = agent.wants({"total_steps": 2})

    report = await run.closes()

    assert report.close_reason == "PLATFORM_FAULT"
    assert "final checkpoint could not be stored" in report.close_message


async def test_an_unconfirmed_node_computes_and_commits_nothing(agent: AgentUnderTest) -> None:
    run = agent.wants(
        {"total_steps": 10_000, "step_seconds": 0.05},
        training={"save_steps": 100, "eval_steps": 1000},
    )
    await run.computes(3)
    agent.peers.allocator.is_down = True

    await until(lambda: 105 in run.steps, "the next checkpoint is due")
    assert run.committed == []
    agent.peers.allocator.is_down = False

    await until(lambda: 100 in run.committed, "it is stored once leases are confirmed")


async def test_a_node_that_is_cut_off_for_too_long_saves_and_stops(
    agent_factory: AgentFactory,
) -> None:
    agent = agent_factory(UNCONFIRMED_CAP="4")
    run = agent.wants(
        {"total_steps": 10_000, "step_seconds": 0.05},
        training={"save_steps": 1000, "eval_steps": 1000},
    )
    await run.computes(3)
    agent.peers.allocator.is_down = True

    await until(lambda: agent.processes(run.lease_id) == [], "the trainer ends")
    agent.peers.allocator.is_down = False
    report = await run.closes()

    assert report.close_reason == "PREEMPTED"
    assert len(run.committed) == 1


async def test_syncs_wait_for_no_upload(agent: AgentUnderTest) -> None:
    run = agent.wants({"total_steps": 2, "checkpoint_bytes": 300_000_000})

    await run.closes()

    times = [at for at, _ in agent.peers.allocator.syncs]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 1.5


async def test_a_resumed_run_says_what_its_checkpoint_knows_and_telemetry_does_not(
    agent: AgentUnderTest,
) -> None:
    first = agent.wants(
        {"total_steps": 8, "steps": {"6": {"die": "kill"}}}, training={"save_steps": 5}
    )
    await first.closes()
    agent.peers.telemetry.stored_step[first.job_id] = 2

    second = agent.wants({"total_steps": 8}, job_id=first.job_id, training={"save_steps": 5})
    report = await second.closes()

    assert report.close_reason == "COMPLETED"
    await until(lambda: agent.spools() == [], "the spool is confirmed")
    assert second.steps == [3, 4, 5, 6, 7, 8]
    assert agent.peers.telemetry.opened[-1].resume_step == 5
    assert "Resuming from the checkpoint of step 5." in second.log
