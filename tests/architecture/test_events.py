"""Every event version has a golden file that decodes for ever, and a stream that takes it."""

import json
from pathlib import Path

import pytest

from lehr.events import codec, subjects
from lehr.events.base import Event
from lehr.events.streams import declared
from tests.architecture.test_life_of_a_job import all_events

GOLDEN = Path(__file__).parents[1] / "contract" / "golden"
EVENTS = all_events()


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_a_golden_file_decodes_and_encodes_to_itself(name: str) -> None:
    body = (GOLDEN / f"{name}.json").read_bytes()

    envelope = codec.decode(body, EVENTS[name])

    assert json.loads(codec.encode(envelope)) == json.loads(body)


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_a_declared_stream_takes_it(name: str) -> None:
    event: Event = codec.decode((GOLDEN / f"{name}.json").read_bytes(), EVENTS[name]).data

    assert declared().stream_of(subjects.build(event))


def test_no_golden_file_is_orphaned() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(EVENTS)
