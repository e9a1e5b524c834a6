"""Write an event in the transaction of the change that it tells of; the relay publishes it."""

from datetime import datetime
from functools import cache
from pathlib import Path

from lehr.events import codec, subjects
from lehr.events.base import Event
from lehr.events.publishing import wrap
from lehr.events.streams import declared
from lehr.postgres import Connection, Queries

BODY_BYTES_MAX = 64 * 1024
"""Largest encoded event; more is not a fact but a file."""


@cache
def sql() -> Queries:
    """Return the statements of outbox and inbox."""
    return Queries.load(Path(__file__).with_name("queries.sql"))


async def add(
    conn: Connection,
    event: Event,
    *,
    sequence: int,
    source: str,
    time: datetime | None = None,
) -> str:
    """Add ``event`` to the outbox of the service whose transaction this is; return its id.

    ``sequence`` is the version of the aggregate after the change; ``source`` the name of the
    service or its ``/services/<name>``; ``time`` when it happened, the present unless given.

    Nothing is published if the transaction rolls back.

    Raises:
        InvalidSubject: tenant or id cannot be part of a subject.
        ValueError: no declared stream takes the event, or it is larger than 64 KiB: our mistake.
    """
    subject = subjects.build(event)
    stream = declared().stream_of(subject)
    envelope = wrap(event, sequence=sequence, source=source, time=time)
    body = codec.encode(envelope)
    if len(body) > BODY_BYTES_MAX:
        raise ValueError(f"{envelope.type} has {len(body)} bytes; an event has {BODY_BYTES_MAX}")
    await conn.execute(
        sql()["add_event"],
        envelope.event_id,
        stream,
        subject,
        envelope.type,
        envelope.subject_id,
        body.decode(),
    )
    return envelope.event_id
