"""Messages to values: every kind of report, exact text, and what is refused."""

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.events import codec
from lehr.events.base import Event
from lehr.events.envelope import Envelope
from lehr.events.run import (
    LogEntry,
    RunBest,
    RunEvaluated,
    RunLogged,
    RunProgressed,
    StepPoint,
)
from services.telemetry.reports import read_lines, read_report

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ABOUT: dict[str, Any] = {"tenant": "acme", "run_id": "run_x", "job_id": "job_x", "epoch": 3}


def body(event: Event) -> bytes:
    envelope: Envelope[Any] = Envelope(
        event_id="1",
        source="/services/trainer_runner",
        type=event.type_name(),
        subject_id=event.subject_id,
        tenant=event.tenant,
        sequence=1,
        time=NOON,
        traceparent=None,
        data=event,
    )
    return codec.encode(envelope)


def progressed(**changes: Any) -> RunProgressed:
    points = (
        StepPoint(step=5, time=NOON, values={"loss": math.nan, "lr": 1e-5}),
        StepPoint(step=6, time=NOON, values={"loss": 0.5}),
    )
    given = {"first_sequence": 7, "last_sequence": 8, "points": points, "total_steps": 9}
    return RunProgressed(**ABOUT, **(given | changes))


def test_steps_become_points_numbered_one_by_one() -> None:
    report = read_report(body(progressed()))

    assert (report.first_sequence, report.last_sequence, report.epoch) == (7, 8, 3)
    told = [(point.step, point.name, point.sequence) for point in report.points]
    assert told == [(5, "loss", 7), (5, "lr", 7), (6, "loss", 8)]
    assert math.isnan(report.points[0].value)


def test_an_evaluation_is_a_point_of_eval_loss_and_its_other_values() -> None:
    event = RunEvaluated(
        **ABOUT,
        report_sequence=4,
        step=0,
        time=NOON,
        eval_loss=math.inf,
        values={"eval_loss": 1.0, "eval_tokens": 2.0},
    )

    report = read_report(body(event))

    values = {point.name: point.value for point in report.points}
    assert values == {"eval_loss": math.inf, "eval_tokens": 2.0}
    assert (report.first_sequence, report.last_sequence) == (4, 4)


def test_a_best_counts_as_a_report_without_points() -> None:
    event = RunBest(**ABOUT, report_sequence=4, step=2, time=NOON, eval_loss=1.0)

    report = read_report(body(event))

    assert (report.first_sequence, report.last_sequence, report.points) == (4, 4, ())


@pytest.mark.parametrize(
    "changes",
    [
        {"first_sequence": 0},
        {"first_sequence": 9, "last_sequence": 8},
        {"last_sequence": 2**62},
        {"points": (StepPoint(step=-1, time=NOON, values={"loss": 1.0}),)},
        {"points": (StepPoint(step=2**32, time=NOON, values={"loss": 1.0}),)},
        {"points": (StepPoint(step=1, time=NOON, values={"": 1.0}),)},
        {"points": (StepPoint(step=1, time=NOON, values={"n" * 201: 1.0}),)},
    ],
)
def test_what_no_run_of_ours_can_say_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_report(body(progressed(**changes)))

    assert refused.value.reason == "REPORT_REFUSED"


def test_a_message_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        read_report(body(RunLogged(**ABOUT, lines=())))
    with pytest.raises(InvalidArgument):
        read_lines(body(progressed()))
    with pytest.raises(InvalidArgument):
        read_report(json.dumps({"specversion": "1.0"}).encode())


def test_lines_keep_their_text() -> None:
    text = "\u00e9\U0001f600 \ttab \x1b[31m \ufffd trailing  "
    entry = LogEntry(sequence=1, time=NOON, level="output", text=text)

    lines = read_lines(body(RunLogged(**ABOUT, lines=(entry,)))).lines

    assert [line.text for line in lines] == [text]
