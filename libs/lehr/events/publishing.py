"""Hand an event to JetStream; for the relay, and for producers that keep a spool of their own."""

from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from nats.aio.client import Client

from lehr.events import codec, subjects
from lehr.events.base import Event
from lehr.events.envelope import Envelope
from lehr.events.streams import declared
from lehr.ids import event_uuid
from lehr.rpc.tracing import current_traceparent

E = TypeVar("E", bound=Event)

PUBLISH_SECONDS = 5.0


def wrap(
    event: E,
    *,
    sequence: int,
    source: str,
    time: datetime | None = None,
    event_id: UUID | None = None,
) -> Envelope[E]:
    """Return ``event`` with its attributes and the trace of the present work.

    ``sequence`` is the version of the aggregate after the change, or the producer's own count;
    ``source`` the name of the service or its ``/services/<name>``; ``time`` when it happened, the
    present unless given. A producer that may say the same fact again gives the same ``event_id``.
    """
    return Envelope(
        event_id=str(event_id or event_uuid()),
        source=source if source.startswith("/") else f"/services/{source}",
        type=event.type_name(),
        subject_id=event.subject_id,
        tenant=event.tenant,
        sequence=sequence,
        time=time or datetime.now(UTC),
        traceparent=current_traceparent(),
        data=event,
    )


async def publish(client: Client, envelope: Envelope[Any]) -> None:
    """Publish, and return when the stream has confirmed; saying it again is harmless.

    Raises:
        nats.errors.Error, nats.js.errors.APIError, TimeoutError: not confirmed; keep the event and
            try again. A full stream is such an error too (code 10077).
    """
    subject = subjects.build(envelope.data)
    stream = declared().stream_of(subject)
    await publish_encoded(client, subject, stream, envelope.event_id, codec.encode(envelope))


async def publish_encoded(
    client: Client, subject: str, stream: str, event_id: str, body: bytes
) -> None:
    """Publish what was encoded before, as ``publish`` does."""
    await client.jetstream().publish(
        subject,
        body,
        timeout=PUBLISH_SECONDS,
        stream=stream,
        headers={"Nats-Msg-Id": event_id, "content-type": codec.CONTENT_TYPE},
    )
