"""The scripted trainer as a process: how it dies, goes deaf and leaves its children."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from lehr.training.ends import RunEnd
from lehr.training.reports import AnyReport, RunningReport, StepReport
from tests.support.trainers import SCRIPTED, a_plan, run_trainer, stop_at


def a_script(**script: Any) -> dict[str, Any]:
    return {"script": {"checkpoint_bytes": 16, "total_steps": 5, **script}}


def test_a_run_reports_over_its_pipe_and_exits_with_success(tmp_path: Path) -> None:
    told = run_trainer(SCRIPTED, a_plan(tmp_path, a_script()))

    assert (told.status, told.end, sorted(told.losses)) == (0, RunEnd.COMPLETED, [1, 2, 3, 4, 5])


@pytest.mark.parametrize(("death", "status"), [("kill", -signal.SIGKILL), ("exit", 1)])
def test_a_death_ends_the_reports_without_a_word(tmp_path: Path, death: str, status: int) -> None:
    plan = a_plan(tmp_path, a_script(steps={"3": {"die": death}}))

    told = run_trainer(SCRIPTED, plan)

    assert (told.status, told.end, sorted(told.losses)) == (status, None, [1, 2])


def test_a_stop_on_the_control_pipe_is_obeyed(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, a_script(total_steps=1000, step_seconds=0.01))

    told = run_trainer(SCRIPTED, plan, on_report=stop_at(3, "PREEMPTED"))

    assert told.end == RunEnd.PREEMPTED
    assert told.checkpoints[-1].step == told.done.step


def test_a_deaf_trainer_ignores_the_stop(tmp_path: Path) -> None:
    steps = {"2": {"die": "ignore_stop"}}
    plan = a_plan(tmp_path, a_script(total_steps=20, step_seconds=0.01, steps=steps))

    told = run_trainer(SCRIPTED, plan, on_report=stop_at(2))

    assert (told.end, len(told.steps)) == (RunEnd.COMPLETED, 20)


def test_a_mistake_of_the_user_is_reported_as_the_end(tmp_path: Path) -> None:
    told = run_trainer(SCRIPTED, a_plan(tmp_path, {}))

    assert (told.status, told.end) == (0, RunEnd.USER_ERROR)
    assert told.done.message == "the job has no script"


def test_children_and_a_process_that_ignores_sigterm_need_a_kill(tmp_path: Path) -> None:
    script = a_script(child_processes=2, ignore_term=True, steps={"2": {"die": "hang"}})
    seen: list[psutil.Process] = []

    def on_report(report: AnyReport, process: subprocess.Popen[bytes], commands: int) -> None:
        if isinstance(report, RunningReport):
            seen.extend(psutil.Process(process.pid).children())
        if isinstance(report, StepReport):
            os.kill(process.pid, signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
            process.kill()

    told = run_trainer(SCRIPTED, a_plan(tmp_path, script), on_report=on_report)

    alive = [child for child in seen if child.is_running()]
    for child in alive:
        child.kill()
    assert (told.status, len(alive)) == (-signal.SIGKILL, 2)
