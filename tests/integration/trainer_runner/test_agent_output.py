"""What a trainer prints arrives as it was printed, bounded, and without our secrets."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

from tests.integration.trainer_runner.story import AgentFactory, AgentUnderTest, until
from tests.support.one_service import KEYS


def printed(*contents: bytes) -> dict[str, object]:
    """Return a script that prints these bytes, one a step."""
    steps = {
        str(number): {"print_bytes_base64": base64.b64encode(content).decode()}
        for number, content in enumerate(contents, 1)
    }
    return {"total_steps": len(contents), "steps": steps}


async def test_lines_are_intact_whatever_the_borders_of_reads(agent: AgentUnderTest) -> None:
    lines = [f"{'x' * (number % 97)}aé漢\U0001f600{number}" for number in range(3000)]
    run = agent.wants(printed("\n".join(lines).encode() + b"\n", b"bad \xff\xfe end\n", b"good\n"))

    await run.closes()
    await until(lambda: agent.spools() == [], "the log is stored")

    kept = [line for line in run.log if line in set(lines)]
    assert kept == lines
    assert r"bad \xff\xfe end" in run.log
    assert "good" in run.log


async def test_a_line_without_end_is_kept_in_pieces(agent: AgentUnderTest) -> None:
    run = agent.wants(printed("é".encode() * 500_000 + b"\nnext\n"))

    await run.closes()
    await until(lambda: agent.spools() == [], "the log is stored")

    pieces = [line for line in run.log if line.startswith("é")]
    assert "".join(pieces) == "é" * 500_000
    assert max(len(piece.encode()) for piece in pieces) <= 64 * 1024
    assert "next" in run.log


async def test_secrets_of_the_agent_are_masked(agent: AgentUnderTest) -> None:
    secret = KEYS["trainer_runner"][0].splitlines()[1]
    encoded = base64.b64encode(secret.encode())
    run = agent.wants(
        printed(f"key {secret}\n".encode(), b"b64 " + encoded + b"\n", b"hf_" + b"T" * 30 + b"\n")
    )

    await run.closes()
    await until(lambda: agent.spools() == [], "the log is stored")

    text = "\n".join(run.log)
    assert secret not in text
    assert encoded.decode()[2:-4] not in text
    assert "hf_TTTT" not in text
    assert text.count("[masked]") == 3


async def test_a_flood_is_cut_with_a_note_and_steps_survive(
    agent_factory: AgentFactory,
) -> None:
    agent = agent_factory(SPOOL_BYTES="200000")
    agent.peers.telemetry.is_deaf = True
    flood = printed(*[b"0123456789" * 10 + b"\n"] * 1000)
    run = agent.wants(flood | {"total_steps": 1000})
    await run.closes()

    agent.peers.telemetry.is_deaf = False
    await until(lambda: agent.spools() == [], "the spool is confirmed")

    assert run.steps[:500] == list(range(1, 501))
    assert any("lines are missing here" in line for line in run.log)


async def test_a_wrong_wall_clock_shifts_points_and_no_age(
    agent_factory: AgentFactory,
) -> None:
    agent = agent_factory(WALL_CLOCK_OFFSET="-1700000000")
    run = agent.wants({"total_steps": 20, "step_seconds": 0.1})

    report = await run.closes()
    await until(lambda: 20 in run.steps, "the series is stored")

    computed = report.running_age.ToTimedelta() - report.end_age.ToTimedelta()
    assert 2.0 <= computed.total_seconds() < 4.0
    baseline = agent.peers.telemetry.reports[run.run_id][1]
    assert datetime.fromisoformat(baseline["time"]) < datetime(1980, 1, 1, tzinfo=UTC)


async def test_numbers_that_are_not_finite_arrive_and_are_marked(agent: AgentUnderTest) -> None:
    run = agent.wants({"total_steps": 3, "steps": {"2": {"loss": "NaN", "grad_norm": "-Infinity"}}})

    await run.closes()
    await until(lambda: run.steps == [1, 2, 3], "the series is stored")

    values = [
        report["points"][0]["values"]
        for report in agent.peers.telemetry.reports[run.run_id].values()
        if "points" in report and report["points"][0]["step"] == 2
    ]
    assert (values[0]["loss"], values[0]["grad_norm"]) == ("NaN", "-Infinity")
