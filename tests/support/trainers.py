"""Plans for trainers, and trainers as the agent runs them: processes with two pipes."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from lehr.training.reports import (
    AnyReport,
    CheckpointReport,
    DoneReport,
    EvaluationReport,
    LogReport,
    Report,
    StepReport,
    decode,
)
from lehr.training.spec import JobSpec
from services.trainer_runner.pipes import StopFlag

R = TypeVar("R", bound=Report)
SCRIPTED = "services.trainer_runner.scripted"
TRAINER = "services.trainer_runner.trainer"


def a_plan(folder: Path, spec: dict[str, Any], **more: Any) -> TrainingPlan:
    """Build a plan whose run writes below ``folder``; ``spec`` are fields of the job's spec."""
    folder.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {
        "job_id": "job_test",
        "run_id": "run_test",
        "epoch": 1,
        "spec_digest": "digest-of-the-spec",
        "model_name": "toy",
        "model_revision": "a" * 64,
        "dataset_revision": "b" * 64,
        "model_dir": folder / "model",
        "dataset_file": folder / "rows.jsonl",
        "output_dir": folder / "out",
        "progress_file": folder / "progress",
    }
    job = JobSpec.model_validate({"name": "test", "model": "toy", "dataset": "rows", **spec})
    return TrainingPlan.model_validate({**told, "spec": job, **more})


@dataclass(slots=True)
class Told:
    """The reports of a run, by kind."""

    reports: list[AnyReport] = field(default_factory=list)
    status: int | None = None
    errors: str = ""

    def __call__(self, report: Report) -> None:
        # Through the codec, as on the pipe.
        self.reports.append(decode(report.model_dump_json().encode()))

    def of(self, kind: type[R]) -> list[R]:
        return [report for report in self.reports if isinstance(report, kind)]

    @property
    def steps(self) -> list[StepReport]:
        return self.of(StepReport)

    @property
    def losses(self) -> dict[int, float]:
        return {report.step: report.values["loss"] for report in self.steps}

    @property
    def evaluations(self) -> list[EvaluationReport]:
        return self.of(EvaluationReport)

    @property
    def eval_losses(self) -> dict[int, float]:
        return {report.step: report.eval_loss for report in self.evaluations}

    @property
    def checkpoints(self) -> list[CheckpointReport]:
        return self.of(CheckpointReport)

    @property
    def logs(self) -> str:
        return "\n".join(report.text for report in self.of(LogReport))

    @property
    def done(self) -> DoneReport:
        return self.of(DoneReport)[-1]

    @property
    def end(self) -> RunEnd | None:
        dones = self.of(DoneReport)
        return dones[-1].end if dones else None

    def checkpoint_at(self, step: int) -> Path:
        return next(Path(report.path) for report in self.checkpoints if report.step == step)


class StopWithin(StopFlag):
    """Asks to stop at the n-th look within a step, the first being 1; a pass looks once."""

    def __init__(self, look: int, reason: RunEnd = RunEnd.USER_STOPPED) -> None:
        super().__init__()
        self._left = look
        self._reason = reason

    def asked_within_step(self) -> RunEnd | None:
        self._left -= 1
        return self._reason if self._left <= 0 else None


def run_trainer(
    module: str,
    plan: TrainingPlan,
    *,
    on_report: Callable[[AnyReport, subprocess.Popen[bytes], int], None] | None = None,
    environment: dict[str, str] | None = None,
    limit_seconds: float = 120.0,
) -> Told:
    """Run a trainer process to its end and return what it told.

    ``on_report`` sees each report with the process and the descriptor that commands are written to.
    """
    file = plan.progress_file.with_name("plan.json")
    file.write_text(plan.model_dump_json())
    reports, report_fd = os.pipe()
    control_fd, commands = os.pipe()
    command = [sys.executable, "-m", module, "--plan", str(file)]
    command += ["--report-fd", str(report_fd), "--control-fd", str(control_fd)]
    error_file = plan.progress_file.with_name("stderr.txt")
    with error_file.open("wb") as errors:
        process = subprocess.Popen(
            command,
            pass_fds=(report_fd, control_fd),
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "LEHR_TORCH_THREADS": "1", **(environment or {})},
        )
    os.close(report_fd)
    os.close(control_fd)
    told = Told()
    try:
        for line in _lines(reports, time.monotonic() + limit_seconds):
            told.reports.append(decode(line))
            if on_report is not None:
                on_report(told.reports[-1], process, commands)
        told.status = process.wait(limit_seconds)
    finally:
        process.kill()
        process.wait()
        os.close(reports)
        os.close(commands)
    told.errors = error_file.read_text(errors="replace")
    return told


def stop_at(
    step: int, reason: str = "USER_STOPPED"
) -> Callable[[AnyReport, subprocess.Popen[bytes], int], None]:
    """Return an ``on_report`` that asks to stop once ``step`` was reported."""

    def on_report(report: AnyReport, process: subprocess.Popen[bytes], commands: int) -> None:
        if isinstance(report, StepReport) and report.step == step:
            os.write(commands, json.dumps({"kind": "stop", "reason": reason}).encode() + b"\n")

    return on_report


def kill_at(step: int) -> Callable[[AnyReport, subprocess.Popen[bytes], int], None]:
    """Return an ``on_report`` that kills the process once ``step`` was reported."""

    def on_report(report: AnyReport, process: subprocess.Popen[bytes], commands: int) -> None:
        if isinstance(report, StepReport) and report.step == step:
            process.kill()

    return on_report


def _lines(fd: int, deadline: float) -> Iterable[bytes]:
    unread = b""
    while True:
        ready, _, _ = select.select([fd], [], [], max(deadline - time.monotonic(), 0.0))
        assert ready, "the trainer took too long"
        received = os.read(fd, 65536)
        if not received:
            return
        *lines, unread = (unread + received).split(b"\n")
        yield from lines
