"""What travels around an event: the CloudEvents attributes as a frozen value."""

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from lehr.events.base import Event

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope(Generic[E]):
    """One event with its CloudEvents 1.0 attributes."""

    event_id: str
    """Id of the outbox row, of the message (``Nats-Msg-Id``) and of the CloudEvent."""
    source: str
    """Who says it, ``/services/<name>``."""
    type: str
    """``lehr.<noun>.<past>.v<major>``."""
    subject_id: str
    """The aggregate that the fact is about."""
    tenant: str
    """Owner of the aggregate; "" is the platform."""
    sequence: int
    """Version of the aggregate after the fact; a consumer ignores what is not higher."""
    time: datetime
    """When the fact was written down, aware UTC."""
    traceparent: str | None
    """W3C trace context of the call that caused it."""
    data: E
    """The fact itself."""
