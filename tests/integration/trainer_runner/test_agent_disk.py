"""What is on the node's disk is true after a restart, bounded, and never goes back."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from lehr.training.ends import RunEnd
from services.trainer_runner.agent.batches import Origin
from services.trainer_runner.agent.disk import Disk, connect
from services.trainer_runner.agent.journal import EpochPassed, Journal
from services.trainer_runner.agent.leases import Ending, Grant, Instants
from services.trainer_runner.agent.spool import Spool
from services.trainer_runner.agent.staging import Staged
from services.trainer_runner.agent.uploader import Uploader
from services.trainer_runner.agent.wall import WallClock

GRANT = Grant(
    lease_id="lease_1",
    run_id="run_1",
    job_id="job_1",
    tenant="acme",
    project="p",
    epoch=7,
    tier="cpu",
    ordinals=(0, 1),
)
ORIGIN = Origin(run_id="run_1", job_id="job_1", tenant="acme", project="p", epoch=7, resume_step=0)
STAGED = Staged(
    path=Path("/runs/run_1/checkpoint-5"),
    step=5,
    is_ordinary=True,
    is_best=False,
    is_final=False,
    is_resumable=True,
    is_last=False,
    eval_loss="NaN",
    snapshot=12.5,
)


@pytest.fixture
async def disk() -> AsyncIterator[Disk]:
    made = Disk()
    yield made
    made.close()


async def a_journal(folder: Path, disk: Disk) -> Journal:
    journal = Journal(folder / "journal.sqlite", disk)
    await journal.open()
    await journal.number_devices(["gpu-a", "gpu-b"])
    return journal


async def a_spool(folder: Path, disk: Disk, *, limit: int = 100_000) -> Spool:
    spool = Spool(folder / "run_1.sqlite", disk, clock=WallClock(), limit_bytes=limit)
    return await spool.open(ORIGIN)


async def test_what_was_said_before_a_checkpoint_is_on_the_disk_before_it(
    tmp_path: Path, disk: Disk
) -> None:
    journal = await a_journal(tmp_path, disk)
    await journal.open_run(GRANT, boot_id="b")
    staged_at_flush: list[list[Staged]] = []

    async def flush() -> None:
        staged_at_flush.append(await journal.staged("run_1"))

    async def never() -> None:
        await asyncio.Event().wait()

    uploader = Uploader(
        GRANT,
        journal=journal,
        peers=None,  # type: ignore[arg-type]  # nothing is uploaded: the lease is never confirmed.
        transfer=None,  # type: ignore[arg-type]
        note=lambda text, level: None,
        flush=flush,
        confirmed=never,
        changed=lambda: None,
    )
    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "checkpoint-5" / "a.json").write_text("{}")
    uploading = asyncio.create_task(uploader.run())

    uploader.add(replace(STAGED, path=tmp_path / "checkpoint-5"))
    await uploader.settled()
    uploading.cancel()

    assert staged_at_flush == [[]]
    assert [staged.step for staged in await journal.staged("run_1")] == [5]


async def test_an_incarnation_only_grows(tmp_path: Path, disk: Disk) -> None:
    first = await (await a_journal(tmp_path, disk)).next_incarnation(at_least=100)
    again = await (await a_journal(tmp_path, disk)).next_incarnation(at_least=50)

    assert (first, again) == (100, 101)


async def test_a_device_keeps_its_number_when_others_come_and_go(
    tmp_path: Path, disk: Disk
) -> None:
    journal = await a_journal(tmp_path, disk)

    numbers = await journal.number_devices(["gpu-c", "gpu-b"])

    assert (numbers["gpu-b"], numbers["gpu-c"]) == (1, 2)


async def test_an_older_lease_opens_nothing_and_leaves_no_trace(tmp_path: Path, disk: Disk) -> None:
    journal = await a_journal(tmp_path, disk)
    await journal.raise_epochs([1], 8)

    with pytest.raises(EpochPassed):
        await journal.open_run(GRANT, boot_id="b")

    again = await a_journal(tmp_path, disk)
    assert await again.runs() == []
    assert again.epochs == {0: 0, 1: 8}


async def test_an_epoch_is_never_lowered(tmp_path: Path, disk: Disk) -> None:
    journal = await a_journal(tmp_path, disk)
    await journal.raise_epochs([0, 1], 9)
    await journal.raise_epochs([0, 1], 3)

    assert (await a_journal(tmp_path, disk)).epochs == {0: 9, 1: 9}


async def test_a_run_is_remembered_as_it_was_left(tmp_path: Path, disk: Disk) -> None:
    journal = await a_journal(tmp_path, disk)
    await journal.open_run(GRANT, boot_id="b")
    await journal.stop_run("run_1", RunEnd.USER_STOPPED)
    await journal.stop_run("run_1", RunEnd.PREEMPTED)
    await journal.stage("run_1", STAGED)
    await journal.stage("run_1", replace(STAGED, path=Path("/other"), step=9, snapshot=20.0))
    await journal.commit_staged("run_1", STAGED)
    ending = Ending(end=RunEnd.USER_STOPPED, message="as asked")
    await journal.end_run("run_1", ending, Instants(began=1.0, ended=30.0))

    (run,) = await (await a_journal(tmp_path, disk)).runs()

    assert (run.grant, run.state, run.ending) == (GRANT, "ended", ending)
    assert run.stop_reason is RunEnd.USER_STOPPED
    assert run.instants == Instants(began=1.0, ended=30.0, committed=12.5)
    assert [staged.step for staged in await journal.staged("run_1")] == [9]


async def test_a_forgotten_run_takes_what_it_staged_along(tmp_path: Path, disk: Disk) -> None:
    journal = await a_journal(tmp_path, disk)
    await journal.open_run(GRANT, boot_id="b")
    await journal.stage("run_1", STAGED)

    await journal.forget_run("run_1")

    assert (await journal.runs(), await journal.staged("run_1")) == ([], [])


async def test_every_commit_is_flushed_to_the_disk(tmp_path: Path) -> None:
    connection = connect(tmp_path / "x.sqlite")

    modes = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous",)]

    assert modes == [2]


async def test_numbers_go_on_after_a_restart_though_all_was_confirmed(
    tmp_path: Path, disk: Disk
) -> None:
    spool = await a_spool(tmp_path, disk)
    spool.add_report({"kind": "best", "step": 1})
    spool.add_line("one", level="info")
    await spool.flush()
    await spool.trim(report_sequence=1, line_sequence=1)
    await spool.stop()

    again = await a_spool(tmp_path, disk)
    again.add_report({"kind": "best", "step": 2})
    await again.flush()

    assert [row.sequence for row in await again.reports_after(0, count=9)] == [2]
    assert (again.last_report, again.last_line) == (2, 1)
    await again.stop()


async def test_lines_are_dropped_first_and_leave_a_note(tmp_path: Path, disk: Disk) -> None:
    spool = await a_spool(tmp_path, disk, limit=10_000)
    for number in range(500):
        spool.add_line(f"line {number}", level="output")
    for step in range(100):
        spool.add_report({"kind": "best", "step": step})
    await spool.flush()
    kept = spool.last_line

    await spool.trim(report_sequence=0, line_sequence=kept)
    spool.add_line("after", level="output")
    await spool.flush()

    note, after = await spool.lines_after(kept, count=9)
    assert f"{500 - kept} lines are missing here" in note.body
    assert '"after"' in after.body
    assert (spool.last_report, note.sequence) == (100, kept + 1)
    assert spool.size_bytes <= 10_000
    await spool.stop()


async def test_a_disk_that_refuses_keeps_rows_in_memory_until_it_takes_them(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = await a_spool(tmp_path, disk)

    def refuse(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(spool, "_write", refuse)
        spool.add_report({"kind": "best", "step": 1})
        await spool.flush()
        assert await spool.reports_after(0, count=9) == []

    await spool.flush()
    assert [row.sequence for row in await spool.reports_after(0, count=9)] == [1]
    await spool.stop()


async def test_text_that_is_no_unicode_is_kept_escaped(tmp_path: Path, disk: Disk) -> None:
    spool = await a_spool(tmp_path, disk)

    spool.add_line("nul \0 surrogate \ud800", level="output")
    await spool.flush()

    (row,) = await spool.lines_after(0, count=9)
    assert row.body.encode()
    assert r"\\ud800" in row.body
    await spool.stop()
