"""Envelope to bytes and back."""

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.events import codec
from lehr.events.envelope import Envelope
from tests.unit.lehr_events.test_base import Point, RunTold, a_run_told

TIME = datetime(2026, 3, 4, 5, 6, 7, 89000, tzinfo=UTC)


def an_envelope(**changes: Any) -> Envelope[RunTold]:
    values: dict[str, Any] = {
        "event_id": "0197a000-0000-7000-8000-000000000001",
        "source": "/services/trainer_runner",
        "type": "lehr.run.told.v1",
        "subject_id": "run_1",
        "tenant": "acme",
        "sequence": 3,
        "time": TIME,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "data": a_run_told(points=[Point(step=1, value=0.5)]),
    }
    return Envelope(**values | changes)


def a_body(**changes: Any) -> bytes:
    """The bytes of an event with attributes changed, or left out where None is given."""
    body = json.loads(codec.encode(an_envelope())) | changes
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


def test_what_was_encoded_is_decoded_equal() -> None:
    assert codec.decode(codec.encode(an_envelope()), RunTold) == an_envelope()


def test_the_attributes_are_those_of_a_cloudevent_and_of_a_webhook() -> None:
    body = json.loads(codec.encode(an_envelope()))

    assert body == {
        "specversion": "1.0",
        "id": "0197a000-0000-7000-8000-000000000001",
        "source": "/services/trainer_runner",
        "type": "lehr.run.told.v1",
        "subject": "run_1",
        "time": "2026-03-04T05:06:07.089000Z",
        "datacontenttype": "application/json",
        "tenant": "acme",
        "sequence": 3,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "object": "event",
        "created_at": 1772600767,
        "data": {
            "tenant": "acme",
            "run_id": "run_1",
            "points": [{"step": 1, "value": 0.5}],
            "seconds": 0.0,
        },
    }


def test_a_time_elsewhere_is_told_in_utc() -> None:
    elsewhere = TIME.astimezone(timezone(timedelta(hours=5, minutes=30)))

    assert json.loads(codec.encode(an_envelope(time=elsewhere)))["time"].endswith(
        "05:06:07.089000Z"
    )


def test_an_event_outside_of_any_trace_has_none() -> None:
    body = codec.encode(an_envelope(traceparent=None))

    assert "traceparent" not in json.loads(body)
    assert codec.decode(body, RunTold).traceparent is None


def test_a_loss_that_is_not_a_number_survives() -> None:
    told = an_envelope(data=a_run_told(points=[Point(step=1, value=math.nan)]))

    body = codec.encode(told)

    assert b'"NaN"' in body
    assert math.isnan(codec.decode(body, RunTold).data.points[0].value)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "strict JSON"),
        (b"\xff", "strict JSON"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b"[" * 100_000, "strict JSON"),
        (b"[]", "JSON object"),
        (a_body(id=None), "attribute id"),
        (a_body(data=None), "attribute data"),
        (a_body(data=[]), "attribute data"),
        (a_body(sequence="3"), "attribute sequence"),
        (a_body(sequence=True), "attribute sequence"),
        (a_body(tenant=7), "attribute tenant"),
        (a_body(specversion="0.3"), "version 0.3"),
        (a_body(type="lehr.run.told.v2"), "lehr.run.told.v1 was expected"),
        (a_body(time="yesterday"), "no RFC 3339 time"),
        (a_body(time="2026-03-04T05:06:07"), "no RFC 3339 time"),
        (a_body(data={"tenant": "acme"}), "run_id: Field required"),
    ],
)
def test_what_is_no_such_event_is_refused_with_what_is_wrong(body: bytes, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told) as refused:
        codec.decode(body, RunTold)

    assert refused.value.reason == "EVENT_MALFORMED"


def test_a_refusal_does_not_quote_the_data() -> None:
    with pytest.raises(InvalidArgument) as refused:
        codec.decode(a_body(data={"tenant": "acme", "run_id": ["secret sample"]}), RunTold)

    assert "secret sample" not in str(refused.value)


def test_a_look_at_the_attributes_needs_no_model() -> None:
    header = codec.peek(a_body(newer="x"))

    assert (header["type"], header["subject"], header["sequence"]) == (
        "lehr.run.told.v1",
        "run_1",
        3,
    )
