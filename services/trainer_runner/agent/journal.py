"""The journal: what an agent must still know after a crash; on the disk before it is acted upon."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lehr.errors import FailedPrecondition
from lehr.postgres.queries import Queries
from lehr.training.ends import RunEnd
from services.trainer_runner.agent.disk import Disk, connect, numbered
from services.trainer_runner.agent.leases import Ending, Grant, Instants
from services.trainer_runner.agent.processes import ProcessId
from services.trainer_runner.agent.staging import Staged


class EpochPassed(FailedPrecondition):
    """A newer lease has used one of the devices already."""

    reason = "EPOCH_PASSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledRun:
    """A run as an earlier life of the agent left it."""

    grant: Grant
    boot_id: str
    state: str
    """``open``: its trainer was to run; ``ended``: uploads are left; ``closed``: to be told."""
    leader: ProcessId | None
    max_checkpoints: int
    stop_reason: RunEnd | None
    ending: Ending | None
    instants: Instants


@cache
def _sql() -> Mapping[str, str]:
    queries = Queries.load(Path(__file__).with_name("journal.sql"))
    return {name: numbered(text) for name, text in queries.items()}


class Journal:
    """One sqlite file; every method returns when its effect would survive a power failure."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._connection: sqlite3.Connection | None = None
        self.epochs: dict[int, int] = {}
        """The highest epoch of each device by its number, as it is on the disk."""

    async def open(self) -> None:
        """Open the file, making it if it is not there."""

        def work() -> None:
            self._connection = connect(self._path)
            for name in ("create_facts", "create_devices", "create_runs", "create_staged"):
                self._execute(name)

        await self._disk.run(work)

    async def close(self) -> None:
        """Close the file."""

        def work() -> None:
            if self._connection is not None:
                self._connection.close()

        await self._disk.run(work)

    async def next_incarnation(self, at_least: int) -> int:
        """Return the number of this life of the agent; it only grows, over a lost journal too."""

        def work() -> int:
            with self._transaction():
                rows = self._execute("fact", "incarnation")
                before = int(rows[0]["value"]) if rows else 0
                number = max(before + 1, at_least)
                self._execute("put_fact", "incarnation", str(number))
            return number

        return await self._disk.run(work)

    async def number_devices(self, device_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of devices; one that was seen before keeps its own."""

        def work() -> list[sqlite3.Row]:
            with self._transaction():
                for device_id in device_ids:
                    self._execute("add_device", device_id)
            return self._execute("devices")

        rows = await self._disk.run(work)
        self.epochs = {row["ordinal"]: row["epoch"] for row in rows}
        return {row["device_id"]: row["ordinal"] for row in rows}

    async def open_run(self, grant: Grant, *, boot_id: str) -> None:
        """Raise the epoch of the devices and remember the run, both or neither.

        Raises:
            EpochPassed: a newer lease was here.
        """

        def work() -> None:
            with self._transaction():
                for ordinal in grant.ordinals:
                    if not self._execute("raise_epoch", ordinal, grant.epoch):
                        raise EpochPassed(
                            f"device {ordinal} has served a newer lease than {grant.lease_id}",
                            lease_id=grant.lease_id,
                            ordinal=ordinal,
                        )
                self._execute(
                    "add_run",
                    grant.lease_id,
                    grant.run_id,
                    grant.job_id,
                    grant.tenant,
                    grant.project,
                    grant.epoch,
                    grant.tier,
                    json.dumps(grant.ordinals),
                    boot_id,
                )

        await self._disk.run(work)
        self.epochs |= dict.fromkeys(grant.ordinals, grant.epoch)

    async def raise_epochs(self, ordinals: Sequence[int], epoch: int) -> None:
        """Let nobody older than this epoch use these devices; newer ones are left alone."""

        def work() -> list[int]:
            with self._transaction():
                return [one for one in ordinals if self._execute("raise_epoch", one, epoch)]

        raised = await self._disk.run(work)
        self.epochs |= dict.fromkeys(raised, epoch)

    async def runs(self) -> list[JournaledRun]:
        """Return every run that was not forgotten."""
        rows = await self._disk.run(lambda: self._execute("runs"))
        return [_run(row) for row in rows]

    async def plan_run(self, run_id: str, *, max_checkpoints: int) -> None:
        """Remember how many ordinary checkpoints the job keeps."""
        await self._write("plan_run", run_id, max_checkpoints)

    async def start_run(self, run_id: str, leader: ProcessId) -> None:
        """Remember the trainer's process."""
        await self._write("start_run", run_id, leader.pid, leader.start)

    async def begin_run(self, run_id: str, began: float) -> None:
        """Remember when computing began."""
        await self._write("begin_run", run_id, began)

    async def stop_run(self, run_id: str, reason: RunEnd) -> None:
        """Remember why it stops; the first reason stays."""
        await self._write("stop_run", run_id, reason.value)

    async def end_run(self, run_id: str, ending: Ending, instants: Instants) -> None:
        """Remember why and when it ended; its processes are dead."""
        await self._write(
            "end_run", run_id, ending.end.value, ending.message, instants.began, instants.ended
        )

    async def change_ending(self, run_id: str, ending: Ending) -> None:
        """Replace the ending: what it had made could not be stored."""
        await self._write("change_ending", run_id, ending.end.value, ending.message)

    async def close_run(self, run_id: str) -> None:
        """Remember that only the allocator must be told."""
        await self._write("close_run", run_id)

    async def forget_run(self, run_id: str) -> None:
        """Forget a run and what it had staged."""
        await self._write("forget_run", run_id)

    async def stage(self, run_id: str, staged: Staged) -> None:
        """Remember a complete checkpoint folder."""
        await self._write(
            "stage",
            str(staged.path),
            run_id,
            staged.step,
            staged.is_ordinary,
            staged.is_best,
            staged.is_final,
            staged.is_resumable,
            staged.is_last,
            staged.eval_loss,
            staged.snapshot,
        )

    async def staged(self, run_id: str) -> list[Staged]:
        """Return the checkpoints of a run that wait."""
        rows = await self._disk.run(lambda: self._execute("staged", run_id))
        return [_staged(row) for row in rows]

    async def unstage(self, path: Path) -> None:
        """Forget a checkpoint folder."""
        await self._write("unstage", str(path))

    async def commit_staged(self, run_id: str, staged: Staged) -> None:
        """Forget a folder whose checkpoint is in the store, and remember how old that one is."""

        def work() -> None:
            with self._transaction():
                self._execute("note_commit", run_id, staged.snapshot)
                self._execute("unstage", str(staged.path))

        await self._disk.run(work)

    async def _write(self, name: str, *values: object) -> None:
        await self._disk.run(lambda: self._execute(name, *values))

    def _execute(self, name: str, *values: object) -> list[sqlite3.Row]:
        return self._opened().execute(_sql()[name], values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._opened()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise RuntimeError("the journal is not open")
        return self._connection


def _run(row: sqlite3.Row) -> JournaledRun:
    leader = None
    if row["pid"] is not None:
        leader = ProcessId(pid=row["pid"], start=row["pid_start"])
    ending = None
    if row["end_reason"] is not None:
        ending = Ending(end=RunEnd(row["end_reason"]), message=row["end_message"])
    return JournaledRun(
        grant=Grant(
            lease_id=row["lease_id"],
            run_id=row["run_id"],
            job_id=row["job_id"],
            tenant=row["tenant"],
            project=row["project"],
            epoch=row["epoch"],
            tier=row["tier"],
            ordinals=tuple(json.loads(row["ordinals"])),
        ),
        boot_id=row["boot_id"],
        state=row["state"],
        leader=leader,
        max_checkpoints=row["max_checkpoints"],
        stop_reason=RunEnd(row["stop_reason"]) if row["stop_reason"] else None,
        ending=ending,
        instants=Instants(began=row["began"], ended=row["ended"], committed=row["committed"]),
    )


def _staged(row: sqlite3.Row) -> Staged:
    return Staged(
        path=Path(row["path"]),
        step=row["step"],
        is_ordinary=bool(row["is_ordinary"]),
        is_best=bool(row["is_best"]),
        is_final=bool(row["is_final"]),
        is_resumable=bool(row["is_resumable"]),
        is_last=bool(row["is_last"]),
        eval_loss=row["eval_loss"],
        snapshot=row["snapshot"],
    )
