"""The life of a run on a node: granted, computed, stored, told, forgotten."""

from __future__ import annotations

from tests.integration.trainer_runner.story import AgentUnderTest, until


async def test_a_run_is_computed_stored_told_and_forgotten(agent: AgentUnderTest) -> None:
    run = agent.wants({"total_steps": 6, "step_seconds": 0.05}, training={"save_steps": 3})

    report = await run.closes()

    assert (report.close_reason, run.committed) == ("COMPLETED", [3, 6])
    await until(lambda: run.steps == [1, 2, 3, 4, 5, 6], "the whole series is stored")
    await until(lambda: agent.spools() == [], "the spool is confirmed and removed")
    await until(lambda: list((agent.state_dir / "runs").iterdir()) == [], "no trace is left")
    await until(lambda: agent.device().is_clear, "the device is clear")
    assert agent.device().epoch == run.desired.lease.epoch
