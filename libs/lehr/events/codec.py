"""Envelope to bytes and back: CloudEvents 1.0 in structured JSON, strict in both directions."""

import json
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from lehr.events.base import Event
from lehr.events.envelope import Envelope
from lehr.events.errors import MalformedEvent

E = TypeVar("E", bound=Event)

CONTENT_TYPE = "application/cloudevents+json"

_REQUIRED = {
    "specversion": str,
    "id": str,
    "source": str,
    "type": str,
    "subject": str,
    "time": str,
    "tenant": str,
    "sequence": int,
    "data": dict,
}


def encode(envelope: Envelope[Any]) -> bytes:
    """Return the event as strict JSON; the same body serves NATS and webhooks."""
    body = {
        "specversion": "1.0",
        "id": envelope.event_id,
        "source": envelope.source,
        "type": envelope.type,
        "subject": envelope.subject_id,
        "time": envelope.time.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "tenant": envelope.tenant,
        "sequence": envelope.sequence,
        "object": "event",
        "created_at": int(envelope.time.timestamp()),
        "data": envelope.data.model_dump(mode="json", by_alias=True),
    }
    if envelope.traceparent:
        body["traceparent"] = envelope.traceparent
    return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()


def decode(body: bytes, model: type[E]) -> Envelope[E]:
    """Read an event of one known type; unknown fields are ignored.

    Raises:
        MalformedEvent: not JSON, not a CloudEvent of ours, another type, or data that does not fit.
    """
    header = peek(body)
    if header["type"] != model.type_name():
        raise MalformedEvent(
            f"event {header['id']} is a {header['type']}, where a {model.type_name()} was expected",
            event_id=header["id"],
            have=header["type"],
            want=model.type_name(),
        )
    try:
        data = model.read(header["data"])
    except ValidationError as problems:
        raise MalformedEvent(
            f"data of event {header['id']} ({header['type']}) does not fit: {_summary(problems)}",
            event_id=header["id"],
            type=header["type"],
        ) from None
    return Envelope(
        event_id=header["id"],
        source=header["source"],
        type=header["type"],
        subject_id=header["subject"],
        tenant=header["tenant"],
        sequence=header["sequence"],
        time=_time(header),
        traceparent=header.get("traceparent"),
        data=data,
    )


def peek(body: bytes) -> dict[str, Any]:
    """Return the CloudEvents attributes, and ``data`` as plain values, of any event of ours.

    Raises:
        MalformedEvent: not strict JSON, or an attribute is missing or of the wrong type.
    """
    try:
        header = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise MalformedEvent(f"an event must be strict JSON: {problem}") from None
    if not isinstance(header, dict):
        raise MalformedEvent("an event must be a JSON object")
    for name, kind in _REQUIRED.items():
        if not isinstance(header.get(name), kind) or isinstance(header.get(name), bool):
            raise MalformedEvent(
                f"attribute {name} of the event must be a {kind.__name__}", attribute=name
            )
    if header["specversion"] != "1.0":
        raise MalformedEvent(f"CloudEvents version {header['specversion']} is not understood")
    return header


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON; write it as a string")


def _time(header: dict[str, Any]) -> datetime:
    try:
        time = datetime.fromisoformat(header["time"])
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise MalformedEvent(
            f"time {header['time']!r} of event {header['id']} is no RFC 3339 time with a zone",
            event_id=header["id"],
        )
    return time.astimezone(UTC)


def _summary(problems: ValidationError) -> str:
    # Never the input: an event may hold what does not belong in a log.
    return "; ".join(
        f"{'.'.join(str(part) for part in error['loc']) or 'data'}: {error['msg']}"
        for error in problems.errors(include_input=False, include_url=False, include_context=False)
    )
