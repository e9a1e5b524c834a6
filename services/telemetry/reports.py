"""Events of runs to values of the domain."""

from collections.abc import Mapping

from lehr.events import codec
from lehr.events.errors import MalformedEvent
from lehr.events.run import RunBest, RunEvaluated, RunLogged, RunProgressed
from lehr.text import storable
from services.telemetry.domain.errors import ReportRefused
from services.telemetry.domain.log import Line, Lines
from services.telemetry.domain.series import NAME_LENGTH_MAX, STEP_MAX, Point, Report

LEVEL_LENGTH_MAX = 32


def read_report(body: bytes) -> Report:
    """Return what a message on the stream RUNS says.

    Raises:
        MalformedEvent: it is no event of a run that we know.
        ReportRefused: no run of ours can have said it.
    """
    kind = codec.peek(body)["type"]
    if kind == RunProgressed.type_name():
        report = _progressed(codec.decode(body, RunProgressed).data)
    elif kind == RunEvaluated.type_name():
        report = _evaluated(codec.decode(body, RunEvaluated).data)
    elif kind == RunBest.type_name():
        report = _best(codec.decode(body, RunBest).data)
    else:
        raise MalformedEvent(f"{kind} is no report of a run that is known here", type=kind)
    _check(report)
    return report


def read_lines(body: bytes) -> Lines:
    """Return what a message on the stream LOGS says.

    Raises: as for ``read_report``.
    """
    event = codec.decode(body, RunLogged).data
    lines = tuple(
        Line(
            sequence=line.sequence,
            time=line.time,
            level=storable(line.level)[:LEVEL_LENGTH_MAX],
            text=storable(line.text),
        )
        for line in event.lines
    )
    if any(not 1 <= line.sequence < 2**62 for line in lines):
        raise ReportRefused(event.run_id, "a line has a number below 1")
    return Lines(
        tenant=event.tenant,
        job_id=event.job_id,
        run_id=event.run_id,
        epoch=event.epoch,
        lines=lines,
    )


def _progressed(event: RunProgressed) -> Report:
    points = tuple(
        Point(
            job_id=event.job_id,
            run_id=event.run_id,
            epoch=event.epoch,
            step=point.step,
            name=storable(name),
            value=value,
            time=point.time,
            sequence=event.first_sequence + place,
        )
        for place, point in enumerate(event.points)
        for name, value in point.values.items()
    )
    return _report(event, event.first_sequence, event.last_sequence, points)


def _evaluated(event: RunEvaluated) -> Report:
    values: Mapping[str, float] = {**event.values, "eval_loss": event.eval_loss}
    points = tuple(
        Point(
            job_id=event.job_id,
            run_id=event.run_id,
            epoch=event.epoch,
            step=event.step,
            name=storable(name),
            value=value,
            time=event.time,
            sequence=event.report_sequence,
        )
        for name, value in values.items()
    )
    return _report(event, event.report_sequence, event.report_sequence, points)


def _best(event: RunBest) -> Report:
    # Its value came with the evaluation; only its number counts here.
    return _report(event, event.report_sequence, event.report_sequence, ())


def _report(
    event: RunProgressed | RunEvaluated | RunBest, first: int, last: int, points: tuple[Point, ...]
) -> Report:
    return Report(
        tenant=event.tenant,
        job_id=event.job_id,
        run_id=event.run_id,
        epoch=event.epoch,
        first_sequence=first,
        last_sequence=last,
        points=points,
    )


def _check(report: Report) -> None:
    if not 1 <= report.first_sequence <= report.last_sequence < 2**62:
        span = f"{report.first_sequence} to {report.last_sequence}"
        raise ReportRefused(report.run_id, f"numbers {span} are no range from 1 on")
    for point in report.points:
        if not 0 <= point.step <= STEP_MAX:
            raise ReportRefused(report.run_id, f"step {point.step} is not 0 to {STEP_MAX}")
        if not 1 <= len(point.name) <= NAME_LENGTH_MAX:
            raise ReportRefused(
                report.run_id, f"a series is named with {len(point.name)} characters"
            )
