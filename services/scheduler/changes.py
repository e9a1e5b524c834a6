"""Wakes whoever waits for a job: Postgres tells every replica which jobs have changed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lehr.postgres import Database

CHANNEL = "job_changed"


class Changes:
    """Listens to the channel; a missed word costs a watcher at most its own waiting time."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._watchers: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._wakers: list[Callable[[], None]] = []

    def on_any(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` at each change of any job."""
        self._wakers.append(wake)

    @contextmanager
    def of(self, job_id: str) -> Iterator[asyncio.Event]:
        """Lend an event that is set whenever the job changes."""
        changed = asyncio.Event()
        self._watchers[job_id].add(changed)
        try:
            yield changed
        finally:
            self._watchers[job_id].discard(changed)
            if not self._watchers[job_id]:
                del self._watchers[job_id]

    async def listen(self) -> None:
        """Listen until the connection ends.

        Raises:
            DatabaseUnavailable: there is none to be had.
        """
        ended = asyncio.Event()
        async with self._db.own_connection() as conn:
            conn.add_termination_listener(lambda _: ended.set())
            await conn.add_listener(CHANNEL, self._told)
            await ended.wait()

    def _told(self, _conn: object, _pid: int, _channel: str, job_id: object) -> None:
        for changed in self._watchers.get(str(job_id), ()):
            changed.set()
        for wake in self._wakers:
            wake()
