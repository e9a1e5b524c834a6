"""Wakes those who watch a job when Postgres says that something of it was stored."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from lehr.postgres import Database

CHANNEL = "telemetry_jobs"


class Bell:
    """One connection that listens for all watchers of this process."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._watchers: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    @contextmanager
    def listening(self, job_id: str) -> Iterator[asyncio.Event]:
        """Give an event that is set when something of the job is stored; clear it before reading.

        It may also be set for nothing, and while the connection is lost nothing sets it.
        """
        rung = asyncio.Event()
        self._watchers[job_id].add(rung)
        try:
            yield rung
        finally:
            self._watchers[job_id].discard(rung)
            if not self._watchers[job_id]:
                del self._watchers[job_id]

    async def run(self) -> None:
        """Listen until the connection is lost.

        Raises:
            DatabaseUnavailable: there is none.
        """
        lost = asyncio.Event()
        async with self._db.own_connection() as conn:
            conn.add_termination_listener(lambda _: lost.set())
            await conn.add_listener(CHANNEL, self._ring)
            # What was stored while nobody listened.
            for job_id in list(self._watchers):
                self._ring(None, 0, CHANNEL, job_id)
            await lost.wait()

    def _ring(self, _conn: object, _pid: int, _channel: str, payload: object) -> None:
        for rung in self._watchers.get(str(payload), ()):
            rung.set()
