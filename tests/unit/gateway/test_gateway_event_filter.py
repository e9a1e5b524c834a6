"""Which events a reader asked for."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.events import wanted


def an_event(event_type: str = "lehr.job.queued.v1", subject: str = "job_1", **data: Any) -> bytes:
    """Return an event as it is published."""
    return json.dumps({"type": event_type, "subject": subject, "data": data}).encode()


def test_everything_is_wanted_where_nothing_is_asked() -> None:
    assert wanted(an_event(), types=(), job_id="")


@pytest.mark.parametrize(
    ("types", "is_wanted"),
    [
        (("lehr.job.",), True),
        (("lehr.job.queued.v1",), True),
        (("lehr.run.", "lehr.job."), True),
        (("lehr.run.",), False),
        (("job.",), False),
        (("lehr.job.queued.v12",), False),
    ],
)
def test_a_type_is_wanted_by_how_it_begins(types: tuple[str, ...], is_wanted: bool) -> None:
    assert (wanted(an_event(), types=types, job_id="") is not None) is is_wanted


@pytest.mark.parametrize(
    "body",
    [
        an_event(subject="job_1"),
        an_event("lehr.checkpoint.committed.v1", subject="ckpt_9", job_id="job_1"),
        an_event("lehr.lease.granted.v1", subject="lease_9", lease={"job_id": "job_1"}),
    ],
)
def test_an_event_about_a_job_is_found_wherever_it_names_it(body: bytes) -> None:
    assert wanted(body, types=(), job_id="job_1")
    assert not wanted(body, types=(), job_id="job_2")
    assert not wanted(body, types=("lehr.other.",), job_id="job_1")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"{}", b'{"type": 5}', b"\xff", b"[" * 100_000],
)
def test_what_is_no_event_ends_no_stream(body: bytes) -> None:
    assert not wanted(body, types=(), job_id="")


@given(
    st.dictionaries(
        st.sampled_from(["subject", "data", "job_id"]),
        st.none() | st.lists(st.integers(), max_size=1) | st.just({"lease": None}) | st.text(),
    )
)
def test_an_event_of_any_shape_is_looked_at(fields: dict[str, Any]) -> None:
    body = json.dumps({"type": "lehr.x.y.v1", **fields}).encode()

    assert wanted(body, types=(), job_id="job_1") is None
