"""A trainer that computes nothing: it follows the script of its spec, step by step.

Reports, cadence, early stopping and checkpoint folders are those of the real trainer. It is test
support: the scheduler refuses scripts in production mode.
"""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lehr import faults
from lehr.errors import InvalidArgument
from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from lehr.training.progress import ProgressClock
from lehr.training.spec import ScriptedStep, ScriptSpec
from services.trainer_runner.cadence import Cadence
from services.trainer_runner.course import Course, Ending, Evaluation, StepDone
from services.trainer_runner.ended import repeat_end
from services.trainer_runner.folders import OPTIMIZER, read_folder, write_json
from services.trainer_runner.launch import launch
from services.trainer_runner.pipes import Reporter, StopFlag

#: A child outlives its trainer, for agents must find such ones; but not a machine's day.
_CHILD = """
import signal, sys, time
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(900)
"""
_CHUNK = 1 << 20
_PASS_SECONDS = 0.1
"""Between two looks for a stop, as between two passes of a real step."""
_NO_STEP = ScriptedStep()


class ScriptedBackend:
    """Losses and files from a script."""

    def __init__(self, plan: TrainingPlan, script: ScriptSpec) -> None:
        self._plan = plan
        self._script = script
        self.step = 0

    def evaluate(self, go_on: Callable[[], bool]) -> Evaluation | None:
        """Return the step's scripted loss; by default 1 / (1 + step)."""
        if not go_on():
            return None
        scripted = self._script.steps.get(self.step, _NO_STEP).eval_loss
        return Evaluation(loss=1.0 / (1 + self.step) if scripted is None else scripted)

    def drop_step(self) -> None:
        """Do nothing: a step changes the state when it is done."""

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Write files of the real names, and as many bytes of weights as the script wants."""
        weights = random.Random(f"{self._plan.job_id} {self.step}")  # noqa: S311 - repeatable
        size, half = self._script.checkpoint_bytes, self._script.checkpoint_bytes // 2
        with (folder / "adapter_model.safetensors").open("wb") as file:
            file.write(_header(size))
            _write_random(file.write, weights, half)
            file.flush()
            faults.hit_sync("trainer.save.half_weights")
            _write_random(file.write, weights, size - half)
        write_json(
            folder / "adapter_config.json",
            {
                "peft_type": "LORA",
                "base_model_name_or_path": self._plan.model_name,
                "revision": self._plan.model_revision,
            },
        )
        faults.hit_sync("trainer.save.weights")
        time.sleep(self._script.save_seconds)
        (folder / OPTIMIZER).write_bytes(_header(4) + bytes(4))
        write_json(folder / "optimizer.json", {})
        write_json(folder / "rng.json", {})
        return {}

    def environment(self) -> Mapping[str, Any]:
        """Return what kind of trainer this was."""
        return {"trainer": "scripted"}


def train(plan: TrainingPlan, report: Reporter, stop: StopFlag) -> RunEnd:
    """Follow the script of ``plan`` and report as a real trainer would."""
    script = plan.spec.script
    if script is None:
        raise InvalidArgument("the job has no script", reason="NO_SCRIPT")
    resumed = read_folder(plan, plan.resume_dir) if plan.resume_dir is not None else None
    if resumed is not None and resumed.end is not None:
        return repeat_end(plan, resumed, resumed.end, report)
    _prepare(script)
    with ProgressClock(plan.progress_file) as clock:
        course = Course(
            plan,
            cadence=_cadence(plan, script),
            report=report,
            stop=stop,
            clock=clock,
            resumed=resumed,
        )
        return course.finish(_follow(plan, script, course, stop))


def _cadence(plan: TrainingPlan, script: ScriptSpec) -> Cadence:
    spec = plan.spec
    return Cadence(
        total_steps=script.total_steps,
        eval_steps=spec.training.eval_steps,
        save_steps=spec.training.save_steps,
        patience=spec.early_stopping.patience,
        evaluates=spec.data.share > 0 or spec.data.validation_dataset is not None,
    )


def _prepare(script: ScriptSpec) -> None:
    if script.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    manner = "deaf" if script.ignore_term else "polite"
    for _ in range(script.child_processes):
        subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _CHILD, manner], stdin=subprocess.DEVNULL
        )
    time.sleep(script.start_seconds)


def _follow(plan: TrainingPlan, script: ScriptSpec, course: Course, stop: StopFlag) -> Ending:
    backend = ScriptedBackend(plan, script)
    backend.step = course.step
    ending = course.begin(backend, train_rows=1, validation_rows=1)
    while ending is None:
        step = backend.step + 1
        scripted = script.steps.get(step, _NO_STEP)
        began = time.monotonic()
        _print(scripted)
        ending = _meet_fate(scripted, stop, step)
        if ending is None:
            seconds = scripted.sleep_seconds or script.step_seconds
            ending = _compute(seconds, course, backend)
        if ending is None:
            backend.step = step
            done = _done(scripted, step, time.monotonic() - began)
            ending = course.after_step(backend, done)
    return ending


def _compute(seconds: float, course: Course, backend: ScriptedBackend) -> Ending | None:
    """Take the time of a step, pass by pass; return how the run ends, if it does meanwhile."""
    done_at = time.monotonic() + seconds
    while True:
        ending = course.within_step(backend)
        left = done_at - time.monotonic()
        if ending is not None or left <= 0:
            return ending
        time.sleep(min(left, _PASS_SECONDS))


def _print(scripted: ScriptedStep) -> None:
    if scripted.print_bytes_base64 is not None:
        sys.stdout.buffer.write(base64.b64decode(scripted.print_bytes_base64))
        sys.stdout.buffer.flush()


def _meet_fate(scripted: ScriptedStep, stop: StopFlag, step: int) -> Ending | None:
    """Die, hang or go deaf before the step is computed, as the script says."""
    match scripted.die:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            sys.stderr.write(f"the script ends the process at step {step}\n")
            raise SystemExit(1)
        case "oom":
            return Ending(
                end=RunEnd.OUT_OF_MEMORY, message=f"The script ran out of memory at step {step}."
            )
        case "hang":
            while True:
                time.sleep(3600)
        case "ignore_stop":
            stop.stop_listening()
        case None:
            pass
    return None


def _done(scripted: ScriptedStep, step: int, elapsed: float) -> StepDone:
    values = {"learning_rate": 1e-4, "num_tokens": 100.0 * step}
    if scripted.grad_norm is not None:
        values["grad_norm"] = scripted.grad_norm
    return StepDone(
        step=step,
        epoch=float(step),
        loss=1.0 / step if scripted.loss is None else scripted.loss,
        values=values,
        elapsed_seconds=elapsed,
    )


def _header(size: int) -> bytes:
    """Return the head of a safetensors file that holds ``size`` bytes as one tensor."""
    told = {"scripted": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    text = json.dumps(told).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_random(write: Callable[[bytes], Any], source: random.Random, size: int) -> None:
    while size > 0:
        chunk = min(size, _CHUNK)
        write(source.randbytes(chunk))
        size -= chunk


if __name__ == "__main__":
    raise SystemExit(launch(train, sys.argv[1:]))
