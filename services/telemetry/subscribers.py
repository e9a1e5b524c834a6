"""NATS in: the two durables of telemetry, read in batches."""

from functools import partial

from lehr.postgres import Database
from services.telemetry.domain.log import Lines
from services.telemetry.domain.series import Report
from services.telemetry.handlers import intake
from services.telemetry.puller import Intake
from services.telemetry.reports import read_lines, read_report


def runs(db: Database) -> Intake[Report]:
    """Return the intake of steps, evaluations and new bests."""
    return Intake(
        durable="telemetry-runs",
        stream="RUNS",
        read=read_report,
        store=partial(intake.store_reports, db=db),
        before_ack="telemetry.runs.before_ack",
    )


def logs(db: Database) -> Intake[Lines]:
    """Return the intake of log lines."""
    return Intake(
        durable="telemetry-logs",
        stream="LOGS",
        read=read_lines,
        store=partial(intake.store_lines, db=db),
        before_ack="telemetry.logs.before_ack",
    )
