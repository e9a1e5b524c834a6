"""Spooled rows as events: steps in batches, everything else one by one, ids that never lie."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lehr.events.base import number_from_json
from lehr.events.envelope import Envelope
from lehr.events.run import (
    LogEntry,
    RunBest,
    RunEvaluated,
    RunEvent,
    RunLogged,
    RunProgressed,
    StepPoint,
)

SOURCE = "/services/trainer_runner"
POINTS_MAX = 200
LINES_MAX = 500
BYTES_MAX = 512 * 1024
"""Of one event's rows; the streams refuse a message of 1 MiB."""

_IDS = uuid.UUID("b6ad7c2e-3a57-5c0f-8d2b-6f1f6a0d9c11")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose reports they are."""

    run_id: str
    job_id: str
    tenant: str
    project: str
    epoch: int
    resume_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One report or line as it lies in the spool."""

    sequence: int
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One event to publish, and the rows that it carries."""

    event: RunEvent
    first_sequence: int
    last_sequence: int


def report_events(origin: Origin, rows: Sequence[Row]) -> list[Said]:
    """Return the events of consecutive reports; neighbouring steps share one."""
    events: list[Said] = []
    steps: list[tuple[Row, dict[str, Any]]] = []
    size = 0
    for row in rows:
        body = json.loads(row.body)
        is_step = body["kind"] == "step"
        if steps and (not is_step or len(steps) == POINTS_MAX or size + len(row.body) > BYTES_MAX):
            events.append(_progressed(origin, steps))
            steps, size = [], 0
        if is_step:
            steps.append((row, body))
            size += len(row.body)
        else:
            events.append(_single(origin, row, body))
    if steps:
        events.append(_progressed(origin, steps))
    return events


def log_events(origin: Origin, rows: Sequence[Row]) -> list[Said]:
    """Return the events of consecutive log lines."""
    events: list[Said] = []
    batch: list[Row] = []
    size = 0
    for row in rows:
        if batch and (len(batch) == LINES_MAX or size + len(row.body) > BYTES_MAX):
            events.append(_logged(origin, batch))
            batch, size = [], 0
        batch.append(row)
        size += len(row.body)
    if batch:
        events.append(_logged(origin, batch))
    return events


def envelope(said: Said, *, time: datetime, round_number: int) -> Envelope[RunEvent]:
    """Wrap an event; its id is the same whenever the same rows are said in the same round.

    A later round says again what a stream has lost, so it must not look like a duplicate to it.
    """
    event = said.event
    key = f"{event.run_id}:{event.PAST}:{said.first_sequence}-{said.last_sequence}"
    if round_number:
        key += f":again-{round_number}"
    return Envelope(
        event_id=str(uuid.uuid5(_IDS, key)),
        source=SOURCE,
        type=event.type_name(),
        subject_id=event.subject_id,
        tenant=event.tenant,
        sequence=said.last_sequence,
        time=time,
        traceparent=None,
        data=event,
    )


def _about(origin: Origin) -> dict[str, Any]:
    return {
        "tenant": origin.tenant,
        "run_id": origin.run_id,
        "job_id": origin.job_id,
        "epoch": origin.epoch,
    }


def _progressed(origin: Origin, steps: Sequence[tuple[Row, dict[str, Any]]]) -> Said:
    last_row, last_body = steps[-1]
    points = tuple(
        StepPoint(
            step=body["step"],
            time=datetime.fromisoformat(body["time"]),
            values={name: float(number_from_json(value)) for name, value in body["values"].items()},
        )
        for _, body in steps
    )
    first = steps[0][0].sequence
    return Said(
        event=RunProgressed(
            **_about(origin),
            first_sequence=first,
            last_sequence=last_row.sequence,
            points=points,
            total_steps=last_body["total_steps"],
            remaining_seconds=last_body["remaining_seconds"],
        ),
        first_sequence=first,
        last_sequence=last_row.sequence,
    )


def _single(origin: Origin, row: Row, body: dict[str, Any]) -> Said:
    facts = {name: value for name, value in body.items() if name != "kind"}
    kind = RunEvaluated if body["kind"] == "evaluation" else RunBest
    event = kind(**_about(origin), report_sequence=row.sequence, **facts)
    return Said(event=event, first_sequence=row.sequence, last_sequence=row.sequence)


def _logged(origin: Origin, rows: Sequence[Row]) -> Said:
    lines = tuple(LogEntry(sequence=row.sequence, **json.loads(row.body)) for row in rows)
    return Said(
        event=RunLogged(**_about(origin), lines=lines),
        first_sequence=rows[0].sequence,
        last_sequence=rows[-1].sequence,
    )
