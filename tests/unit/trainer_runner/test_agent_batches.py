"""Spooled rows become events whose ids never stand for two contents."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from lehr.events import codec
from lehr.events.run import RunBest, RunEvaluated, RunLogged, RunProgressed
from services.trainer_runner.agent.batches import (
    BYTES_MAX,
    POINTS_MAX,
    Origin,
    Row,
    envelope,
    log_events,
    report_events,
)

ORIGIN = Origin(run_id="run_1", job_id="job_1", tenant="acme", project="p", epoch=3, resume_step=0)
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def a_step(sequence: int) -> Row:
    body = {
        "kind": "step",
        "step": sequence,
        "time": NOW.isoformat(),
        "values": {"loss": "NaN", "learning_rate": 0.1},
        "total_steps": 9,
        "remaining_seconds": None,
    }
    return Row(sequence=sequence, body=json.dumps(body))


def an_evaluation(sequence: int) -> Row:
    body = {"kind": "evaluation", "step": 1, "time": NOW.isoformat(), "eval_loss": "Infinity"}
    return Row(sequence=sequence, body=json.dumps(body))


def a_best(sequence: int) -> Row:
    body = {"kind": "best", "step": 1, "time": NOW.isoformat(), "eval_loss": 0.5}
    return Row(sequence=sequence, body=json.dumps(body))


def test_neighbouring_steps_share_an_event_and_others_stand_alone() -> None:
    rows = [a_step(1), a_step(2), an_evaluation(3), a_best(4), a_step(5)]

    events = report_events(ORIGIN, rows)

    assert [type(said.event) for said in events] == [
        RunProgressed,
        RunEvaluated,
        RunBest,
        RunProgressed,
    ]
    assert [(said.first_sequence, said.last_sequence) for said in events] == [
        (1, 2),
        (3, 3),
        (4, 4),
        (5, 5),
    ]


@given(st.lists(st.sampled_from([a_step, an_evaluation, a_best]), max_size=300))
def test_every_row_is_in_exactly_one_event_in_order(kinds: list[object]) -> None:
    rows = [make(number) for number, make in enumerate(kinds, 1)]  # type: ignore[operator]

    events = report_events(ORIGIN, rows)

    covered = [
        number for said in events for number in range(said.first_sequence, said.last_sequence + 1)
    ]
    assert covered == list(range(1, len(rows) + 1))


def test_batches_are_bounded_in_number_and_size() -> None:
    events = report_events(ORIGIN, [a_step(number) for number in range(1, POINTS_MAX + 2)])
    line = json.dumps({"time": NOW.isoformat(), "level": "output", "text": "x" * (BYTES_MAX // 2)})
    logged = log_events(ORIGIN, [Row(sequence=number, body=line) for number in (1, 2, 3)])

    assert [said.last_sequence for said in events] == [POINTS_MAX, POINTS_MAX + 1]
    assert [said.last_sequence for said in logged] == [1, 2, 3]


def test_an_event_survives_the_wire_with_its_odd_numbers() -> None:
    (said,) = report_events(ORIGIN, [a_step(1)])

    body = codec.encode(envelope(said, time=NOW, round_number=0))

    assert '"loss":"NaN"' in body.decode()
    assert codec.decode(body, RunProgressed).data.points[0].values["learning_rate"] == 0.1


def test_the_same_rows_have_the_same_id_and_others_never() -> None:
    (two,) = report_events(ORIGIN, [a_step(1), a_step(2)])
    (one,) = report_events(ORIGIN, [a_step(1)])
    (logged,) = log_events(
        ORIGIN,
        [Row(sequence=1, body=json.dumps({"time": NOW.isoformat(), "level": "x", "text": ""}))],
    )
    ids = [
        envelope(said, time=NOW, round_number=number).event_id
        for said, number in ((two, 0), (one, 0), (logged, 0), (two, 1))
    ]

    assert len(set(ids)) == 4
    assert envelope(two, time=NOW, round_number=0).event_id == ids[0]
    assert isinstance(logged.event, RunLogged)
