"""Carry events from the outbox to JetStream: in order, at least once, whatever dies in between."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import groupby

import asyncpg
import nats.errors
from nats.aio.client import Client

from lehr import faults
from lehr.errors import Unavailable
from lehr.events.outbox import sql
from lehr.events.publishing import publish_encoded
from lehr.logs import get_logger, metrics
from lehr.postgres import Connection, Database

BATCH = 200
"""Events read and marked in one transaction."""

PARALLEL = 32
"""Aggregates whose events are in flight at once; those of one aggregate go one by one."""

POLL = timedelta(seconds=1)
"""How often to look without having been woken."""

SENT_KEPT = timedelta(days=7)
"""A sent event stays, so that a lost stream can be filled again."""

TAKEN_KEPT = timedelta(days=14)
"""Longer than any stream keeps what it could deliver again."""

TIDY_EVERY = timedelta(hours=1)


class Relay:
    """Publishes the outbox of one service.

    Several may run for one schema: one leads and the others wait. Should two ever lead at once, an
    event is published twice and the stream, or else the inbox, drops one.
    """

    def __init__(self, db: Database, client: Client, *, poll: timedelta = POLL) -> None:
        """``client`` may be disconnected; events then wait in the outbox."""
        self._db = db
        self._client = client
        self._poll = poll
        self._woken = asyncio.Event()
        self._log = get_logger()

    async def run(self) -> None:
        """Relay for ever; a lost database or stream is waited for."""
        pause = 0.2
        while True:
            try:
                await self._lead()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, Unavailable) as problem:
                self._log.warning("relay_interrupted", error=repr(problem), retry_seconds=pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 10.0)
            else:
                pause = 0.2

    async def _lead(self) -> None:
        """Hold the lead on one connection of its own, for LISTEN and the lock live there."""
        async with self._db.own_connection() as conn:
            channel = await conn.fetchval(sql()["outbox_channel"])
            await conn.add_listener(channel, self._wake)
            try:
                # Whoever leads may be another process, which can tell nobody that it ended.
                while not await conn.fetchval(sql()["try_lead"]):  # noqa: ASYNC110
                    await asyncio.sleep(self._poll.total_seconds())
                self._log.debug("relay_leads", channel=channel)
                await self._relay_until_lost(conn)
            finally:
                with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    await conn.remove_listener(channel, self._wake)

    async def _relay_until_lost(self, conn: Connection) -> None:
        loop = asyncio.get_running_loop()
        tidy_at = loop.time()
        while True:
            self._woken.clear()
            moved = BATCH
            while moved == BATCH and self._client.is_connected:
                moved = await self._move(conn)
            if self._woken.is_set():
                continue
            await self._measure(conn)
            if loop.time() >= tidy_at:
                await conn.execute(sql()["forget_sent"], SENT_KEPT)
                await conn.execute(sql()["forget_taken"], TAKEN_KEPT)
                tidy_at = loop.time() + TIDY_EVERY.total_seconds()
            # Not wait_for, which up to Python 3.11 may swallow a cancellation.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll.total_seconds()):
                    await self._woken.wait()

    async def _measure(self, conn: Connection) -> None:
        [row] = await conn.fetch(sql()["count_waiting"])
        metrics.put("outbox_waiting", row["waiting_count"])
        metrics.put("outbox_oldest_seconds", row["oldest_seconds"])

    async def flush(self) -> None:
        """Publish what waits now, without leading; for a process that is about to end."""
        if self._client.is_connected:
            async with self._db.connection() as conn:
                while await self._move(conn) == BATCH:
                    pass

    async def _move(self, conn: Connection) -> int:
        """Publish one batch and mark what the streams confirmed; return how many these were."""
        waiting = await conn.fetch(sql()["events_waiting"], BATCH)
        if not waiting:
            return 0
        slots = asyncio.Semaphore(PARALLEL)
        by_aggregate = sorted(waiting, key=lambda row: (row["subject_id"], row["outbox_id"]))
        groups = [list(rows) for _, rows in groupby(by_aggregate, lambda row: row["subject_id"])]
        problems: list[Exception] = []
        sent = await asyncio.gather(
            *(self._publish_in_order(rows, slots, problems) for rows in groups)
        )
        outbox_ids = [outbox_id for ids in sent for outbox_id in ids]
        if problems:
            self._log.warning(
                "events_not_published",
                waiting_count=len(waiting) - len(outbox_ids),
                first_error=repr(problems[0]),
            )
        await faults.hit("relay.before_mark")
        if outbox_ids:
            await conn.execute(sql()["mark_sent"], outbox_ids)
        return len(outbox_ids)

    async def _publish_in_order(
        self,
        rows: Sequence[asyncpg.Record],
        slots: asyncio.Semaphore,
        problems: list[Exception],
    ) -> list[int]:
        """Publish the events of one aggregate up to the first that fails."""
        sent: list[int] = []
        async with slots:
            for row in rows:
                try:
                    await self._publish(row)
                except (nats.errors.Error, OSError, Unavailable) as problem:
                    problems.append(problem)
                    break
                sent.append(row["outbox_id"])
        return sent

    async def _publish(self, row: asyncpg.Record) -> None:
        await faults.hit("relay.drop")
        await publish_encoded(
            self._client,
            row["subject"],
            row["stream"],
            str(row["event_id"]),
            row["body"].encode(),
        )
        metrics.add("events_published", type=row["type"])

    def _wake(self, *_: object) -> None:
        self._woken.set()
