"""Events and small observers for the tests of events."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from nats.aio.client import Client

from lehr.events import outbox
from lehr.events.job import JobFinished
from lehr.postgres import Database

PATIENCE_SECONDS = 60.0


def a_job_finished(job_id: str = "job_1", *, tenant: str = "acme") -> JobFinished:
    return JobFinished(
        tenant=tenant,
        job_id=job_id,
        project="default",
        name="a job",
        run_ordinal=1,
        state="SUCCEEDED",
        end_reason="COMPLETED",
        message="",
        finish_time=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )


async def say(db: Database, *events: JobFinished, first_sequence: int = 1) -> list[str]:
    """Add events to the outbox, one transaction each; return their ids."""
    ids = []
    for sequence, event in enumerate(events, first_sequence):
        async with db.transaction() as conn:
            ids.append(await outbox.add(conn, event, sequence=sequence, source="scheduler"))
    return ids


async def until(true: Callable[[], Awaitable[Any]], *, seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait until ``true`` answers with something; return it."""
    async with asyncio.timeout(seconds):
        # What is waited for happens in another process.
        while not (answer := await true()):
            await asyncio.sleep(0.02)
    return answer


async def stored(client: Client, stream: str) -> list[dict[str, Any]]:
    """Return the bodies that a stream holds, oldest first."""
    stream_context = client.jetstream()
    state = (await stream_context.stream_info(stream)).state
    numbers = range(state.first_seq, state.last_seq + 1) if state.messages else ()
    messages = [await stream_context.get_msg(stream, number) for number in numbers]
    return [json.loads(message.data or b"{}") for message in messages]


async def waiting(db: Database) -> int:
    """Return how many events have not been marked as sent."""
    async with db.connection() as conn:
        count: int = await conn.fetchval("SELECT count(*) FROM outbox WHERE sent_time IS NULL")
    return count
