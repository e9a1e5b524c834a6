"""The frame of a trainer process: its arguments, its pipes, and how its failures are told."""

from __future__ import annotations

import argparse
import ctypes
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lehr.errors import InvalidArgument
from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from lehr.training.reports import DoneReport, LogReport
from services.trainer_runner.pipes import Reporter, ReportPipe, StopFlag

_PR_SET_PDEATHSIG = 1

Train = Callable[[TrainingPlan, Reporter, StopFlag], RunEnd]


def launch(train: Train, arguments: Sequence[str]) -> int:
    """Run ``train`` as the agent asked and return the exit status.

    A mistake of the user is reported as the end of the run, with status 0. Anything else leaves
    a traceback on standard error and no end, so that the agent judges by the way the process went.
    """
    parser = argparse.ArgumentParser(prog="trainer", description="Train as a plan says.")
    parser.add_argument("--plan", type=Path, required=True, help="the plan, a JSON file")
    parser.add_argument("--report-fd", type=int, required=True, help="reports go there")
    parser.add_argument("--control-fd", type=int, required=True, help="commands come from there")
    given = parser.parse_args(arguments)
    die_with_parent()
    plan = TrainingPlan.model_validate_json(given.plan.read_bytes())
    report = ReportPipe(given.report_fd)
    try:
        train(plan, report, StopFlag(given.control_fd))
    except InvalidArgument as error:
        report(LogReport(level="error", text=error.message))
        report(DoneReport(end=RunEnd.USER_ERROR, message=error.message))
    return 0


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the agent dies; elsewhere the pipes must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
