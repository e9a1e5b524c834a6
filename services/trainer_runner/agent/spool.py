"""The spool of one run: reports and log lines on this disk until telemetry has them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Self

from lehr.logs import get_logger
from lehr.postgres.queries import Queries
from services.trainer_runner.agent.batches import Origin, Row
from services.trainer_runner.agent.disk import Disk, connect, numbered
from services.trainer_runner.agent.wall import WallClock

FLUSH_SECONDS = 0.1
"""How long a report is in memory alone."""

KEPT_SECONDS = 7 * 86_400.0
"""How long a closed spool waits for telemetry."""

_LINE_SHARE = 0.5
"""Part of the room that log lines may take: reports must outlast them."""


@cache
def _sql() -> Mapping[str, str]:
    queries = Queries.load(Path(__file__).with_name("spool.sql"))
    return {name: numbered(text) for name, text in queries.items()}


class Spool:
    """Numbers what a run says, keeps it, and forgets it up to a watermark.

    Adding never waits and never fails: rows are in memory until the next flush, a full disk leaves
    them there, and beyond the room that a run has log lines are dropped with a note of how many.
    """

    def __init__(self, path: Path, disk: Disk, *, clock: WallClock, limit_bytes: int) -> None:
        self.path = path
        self.last_report = 0
        self.last_line = 0
        self.is_closed = False
        """Nothing more will be added."""
        self.is_opened = False
        """Telemetry knows the run."""
        self._disk = disk
        self._clock = clock
        self._limit = limit_bytes
        self._connection: sqlite3.Connection | None = None
        self._origin: Origin | None = None
        self._facts: dict[str, str] = {}
        self._new: list[tuple[str, int, str]] = []
        self._report_bytes = self._line_bytes = 0
        self._dropped_lines = self._dropped_reports = 0
        self._flushing = asyncio.Lock()
        self._flusher: asyncio.Task[None] | None = None
        self._log = get_logger()

    @property
    def origin(self) -> Origin:
        """Whose reports these are, once opened."""
        if self._origin is None:
            raise RuntimeError(f"spool {self.path.name} is not open")
        return self._origin

    @property
    def size_bytes(self) -> int:
        """Bytes that are kept."""
        return self._report_bytes + self._line_bytes

    @property
    def is_abandoned(self) -> bool:
        """Whether it was closed so long ago that nobody will ask for it any more."""
        closed = self._facts.get("closed")
        return bool(closed) and time.time() - float(closed or 0) > KEPT_SECONDS

    async def open(self, origin: Origin | None = None) -> Self:
        """Make the file for ``origin``, or open the one that an earlier life left.

        Raises:
            ValueError: the file belongs to nobody.
        """
        await self._disk.run(self._open)
        stored = self._facts.get("origin")
        owner = Origin(**json.loads(stored)) if stored else origin
        if owner is None:
            raise ValueError(f"{self.path} does not say whose it is")
        self._origin = owner
        self._facts["origin"] = json.dumps(asdict(owner))
        self.last_report = int(self._facts.get("last_report", "0"))
        self.last_line = int(self._facts.get("last_line", "0"))
        self.is_closed = bool(self._facts.get("closed"))
        self.is_opened = "opened" in self._facts
        await self.flush()
        self._flusher = asyncio.create_task(self._flush_for_ever(), name=f"flush {self.path.stem}")
        return self

    def add_report(self, body: Mapping[str, Any]) -> None:
        """Keep a report under the next number."""
        text = json.dumps(body, allow_nan=False, separators=(",", ":"))
        if self.size_bytes + len(text) > self._limit:
            if self._dropped_reports == 0:
                self._log.error("spool_full", run_id=self.origin.run_id, limit_bytes=self._limit)
            self._dropped_reports += 1
            return
        self.last_report += 1
        self._report_bytes += len(text)
        self._new.append(("add_report", self.last_report, text))

    def add_line(self, text: str, *, level: str) -> None:
        """Keep a log line under the next number, or count it as dropped."""
        body = self._line(text, level)
        has_room = self._line_bytes + len(body) <= self._limit * _LINE_SHARE
        if not has_room or self.size_bytes + len(body) > self._limit:
            self._dropped_lines += 1
            return
        self._note_gap()
        self._put_line(body)

    def mark_opened(self) -> None:
        """Remember that telemetry knows the run."""
        self.is_opened = True
        self._facts["opened"] = "1"

    def reopen(self) -> None:
        """Add more after all: the same run is started once again."""
        self.is_closed = False
        self._facts["closed"] = ""

    async def close(self) -> None:
        """Add nothing more; what is there is kept until it is confirmed."""
        self._note_gap()
        self.is_closed = True
        self._facts["closed"] = self._facts.get("closed") or f"{time.time():.0f}"
        await self.flush()

    async def flush(self) -> None:
        """Bring what was added to the disk; if that is full, it stays in memory."""
        # Shielded: rows that were taken from memory must arrive although the caller is cancelled.
        await asyncio.shield(asyncio.create_task(self._flush()))

    async def reports_after(self, sequence: int, *, count: int) -> list[Row]:
        """Return the next reports on the disk, in order."""
        return await self._rows("reports_after", sequence, count)

    async def lines_after(self, sequence: int, *, count: int) -> list[Row]:
        """Return the next log lines on the disk, in order."""
        return await self._rows("lines_after", sequence, count)

    async def trim(self, *, report_sequence: int, line_sequence: int) -> None:
        """Forget what telemetry has stored."""

        def work() -> tuple[int, int]:
            self._execute("BEGIN IMMEDIATE")
            self._execute(_sql()["trim_reports"], report_sequence)
            self._execute(_sql()["trim_lines"], line_sequence)
            self._execute("COMMIT")
            return self._measure()

        async with self._flushing:
            self._report_bytes, self._line_bytes = await self._disk.run(work)
            for name, _, body in self._new:
                self._count(name, body)

    async def stop(self) -> None:
        """Flush and close the file, which stays."""
        if self._flusher is not None:
            self._flusher.cancel()
            with suppress(asyncio.CancelledError):
                await self._flusher
        await self.flush()
        if self._new:
            self._log.error("spool_incomplete", path=self.path.name, row_count=len(self._new))
        await self._disk.run(self._disconnect)

    async def remove(self) -> None:
        """Stop, and delete the file."""
        await self.stop()

        def work() -> None:
            for suffix in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

        await self._disk.run(work)

    def _line(self, text: str, level: str) -> str:
        # Lone surrogates cannot be stored as UTF-8 by anybody.
        clean = text.encode("utf-8", errors="backslashreplace").decode()
        printed = self._clock.now().isoformat()
        return json.dumps({"time": printed, "level": level, "text": clean}, separators=(",", ":"))

    def _note_gap(self) -> None:
        if self._dropped_lines:
            count, self._dropped_lines = self._dropped_lines, 0
            self._put_line(
                self._line(
                    f"{count} lines are missing here: they came faster than the log could be "
                    "stored, or while it could not be reached.",
                    "warning",
                )
            )

    def _put_line(self, body: str) -> None:
        self.last_line += 1
        self._line_bytes += len(body)
        self._new.append(("add_line", self.last_line, body))

    def _count(self, name: str, body: str) -> None:
        if name == "add_report":
            self._report_bytes += len(body)
        else:
            self._line_bytes += len(body)

    async def _rows(self, name: str, sequence: int, count: int) -> list[Row]:
        rows = await self._disk.run(lambda: self._execute(_sql()[name], sequence, count))
        return [Row(sequence=row["sequence"], body=row["body"]) for row in rows]

    async def _flush(self) -> None:
        async with self._flushing:
            rows, self._new = self._new, []
            facts = self._facts | {
                "last_report": str(self.last_report),
                "last_line": str(self.last_line),
            }
            try:
                await self._disk.run(lambda: self._write(rows, facts))
            except sqlite3.Error as problem:
                self._new = rows + self._new
                self._log.warning("spool_not_written", path=self.path.name, error=repr(problem))

    async def _flush_for_ever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            if self._new:
                await self.flush()
                # The disk is full: do not hammer it.
                await asyncio.sleep(1.0 if self._new else 0.0)

    def _open(self) -> None:
        self._connection = connect(self.path)
        for name in ("create_facts", "create_reports", "create_lines"):
            self._execute(_sql()[name])
        self._facts = {row["name"]: row["value"] for row in self._execute(_sql()["facts"])}
        self._report_bytes, self._line_bytes = self._measure()

    def _write(self, rows: list[tuple[str, int, str]], facts: Mapping[str, str]) -> None:
        self._execute("BEGIN IMMEDIATE")
        try:
            for name, sequence, body in rows:
                self._execute(_sql()[name], sequence, body)
            for fact in facts.items():
                self._execute(_sql()["put_fact"], *fact)
            self._execute("COMMIT")
        except sqlite3.Error:
            with suppress(sqlite3.Error):
                self._execute("ROLLBACK")
            raise

    def _measure(self) -> tuple[int, int]:
        row = self._execute(_sql()["measure"])[0]
        return row["report_bytes"], row["line_bytes"]

    def _execute(self, sql: str, *values: object) -> list[sqlite3.Row]:
        if self._connection is None:
            raise RuntimeError(f"spool {self.path.name} is not open")
        return self._connection.execute(sql, values).fetchall()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
