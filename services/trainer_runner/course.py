"""The course of a run: after each step it reports, evaluates, saves and finds the end.

The real and the scripted trainer share it; what they differ in is the backend that computes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from lehr import faults
from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from lehr.training.progress import ProgressClock
from lehr.training.reports import (
    CheckpointReport,
    DoneReport,
    EvaluationReport,
    LogReport,
    RunningReport,
    StepReport,
    encode,
)
from services.trainer_runner import words
from services.trainer_runner.cadence import Cadence, Marks, Standing
from services.trainer_runner.folders import (
    LINEAGE,
    SERIES,
    STATE,
    Resumed,
    lineage_of,
    write_folder,
    write_json,
)
from services.trainer_runner.pace import Pace
from services.trainer_runner.pipes import Reporter, StopFlag

Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What the validation rows gave."""

    loss: float
    """Mean over their terms; of supervised methods over the trained tokens, in nats."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Everything else to chart, such as ``rewards/accuracies``."""


class Backend(Protocol):
    """What computes; the course decides when."""

    def evaluate(self, go_on: Callable[[], bool]) -> Evaluation | None:
        """Return what the validation rows give.

        ``go_on`` is asked between two batches; None is returned once it says no.
        """
        ...

    def drop_step(self) -> None:
        """Go back to the state after the last whole step, as if no more had been computed."""
        ...

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Write weights and everything needed to continue; return what fits in strict JSON."""
        ...

    def environment(self) -> Mapping[str, Any]:
        """Return versions, device and threads, which a resumed run must share."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """One optimiser step, as its backend measured it."""

    step: int
    epoch: float
    """Passes over the training rows so far."""
    loss: float
    """Mean loss of the trained tokens of the step, in nats."""
    values: Mapping[str, float]
    """Everything else to chart, such as ``learning_rate``."""
    elapsed_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ends, and words for a person."""

    end: RunEnd
    message: str = ""


class Course:
    """One run from its first batch to its end; billed from ``begin`` until ``finish``."""

    def __init__(
        self,
        plan: TrainingPlan,
        *,
        cadence: Cadence,
        report: Reporter,
        stop: StopFlag,
        clock: ProgressClock,
        resumed: Resumed | None,
    ) -> None:
        self._plan = plan
        self._cadence = cadence
        self._report = report
        self._stop = stop
        self._clock = clock
        self._pace = Pace()
        self._epoch = 0.0
        self._whole_at = 0.0
        """CLOCK_MONOTONIC seconds at which the last whole step was computed."""
        self._saved_step: int | None = None
        self._start_step = resumed.step if resumed is not None else 0
        self.step = resumed.step if resumed is not None else 0
        self.standing = resumed.standing if resumed is not None else Standing()
        self._series = [resumed.series] if resumed is not None else []

    def begin(self, backend: Backend, *, train_rows: int, validation_rows: int) -> Ending | None:
        """Say that computing begins, and evaluate what is due before the next step.

        That is the base model before step 1, or the step at which a stop had cut the evaluation
        short. Returns how the run ends, where it ends at once.
        """
        stopped = self.stopped_before_begin()
        if stopped is not None:
            return stopped
        self._clock.begin()
        self._report(
            RunningReport(
                total_steps=self._cadence.total_steps,
                train_rows=train_rows,
                validation_rows=validation_rows,
                start_step=self.step,
            )
        )
        if not self._cadence.is_evaluation_due(self.step, self.standing):
            return None
        asked = self._evaluate(backend)
        if asked is not None:
            return self._ending(asked)
        end = self._cadence.end_at(self.step, self.standing)
        marks = self._cadence.marks_at(self.step, self.standing, end)
        # The checkpoint that the run continues from is there already.
        self._save(backend, replace(marks, is_ordinary=False), end)
        return self._ending(end)

    def stopped_before_begin(self) -> Ending | None:
        """Return the end of a run that was asked to stop before it computed anything."""
        return self._ending(self._stop.asked())

    def passed(self) -> None:
        """Show that the work goes on, where a step takes long."""
        self._clock.advance()

    def within_step(self, backend: Backend) -> Ending | None:
        """Return how the run ends if it must stop before the step that is being computed.

        Ask before the step changes the model. What is computed after a stop is paid by nobody, so
        it is not kept: what is saved is the last whole step.
        """
        end = self._stop.asked_within_step()
        if end is None:
            return None
        backend.drop_step()
        self.log(f"step {self.step + 1} was not finished before the stop and is not kept")
        # The checkpoint that the run continued from is there already.
        if self.step > self._start_step:
            marks = self._cadence.marks_at(self.step, self.standing, end)
            self._save(backend, marks, end, snapshot=self._whole_at)
        return self._ending(end)

    def after_step(self, backend: Backend, done: StepDone) -> Ending | None:
        """Report a step and do what is due after it; return how the run ends, if it does."""
        self._whole_at = time.monotonic()
        self._clock.advance()
        self.step, self._epoch = done.step, done.epoch
        self.standing = self.standing.trained(done.loss)
        self._pace.steps.append(done.elapsed_seconds)
        self._tell(
            StepReport(
                step=done.step,
                epoch=done.epoch,
                values={"loss": done.loss, **done.values},
                elapsed_seconds=done.elapsed_seconds,
                remaining_seconds=self._pace.seconds_left(self._cadence, done.step),
            )
        )
        self._warn_of_non_finite(done)
        end = self._settle(backend)
        self._save(backend, self._cadence.marks_at(self.step, self.standing, end), end)
        return self._ending(end)

    def finish(self, ending: Ending) -> RunEnd:
        """Report the end; the last word of a run."""
        self._clock.end()
        standing = self.standing
        self._report(
            DoneReport(
                end=ending.end,
                message=ending.message,
                step=self.step,
                best_step=standing.best_step,
                best_loss=standing.best_loss,
                baseline_loss=standing.baseline_loss,
            )
        )
        return ending.end

    def log(self, text: str, level: Level = "info") -> None:
        """Write a line to the job's log."""
        self._report(LogReport(level=level, text=text))

    def _settle(self, backend: Backend) -> RunEnd | None:
        """Evaluate if it is due, and return how the run ends here, if it does.

        A stop is obeyed before and during an evaluation, which the resumed run then makes up for.
        """
        asked = self._asked()
        if asked is None and self._cadence.is_evaluation_due(self.step, self.standing):
            asked = self._evaluate(backend)
        by_itself = self._cadence.end_at(self.step, self.standing)
        if by_itself == RunEnd.USER_ERROR:
            return by_itself
        return asked or by_itself

    def _evaluate(self, backend: Backend) -> RunEnd | None:
        """Evaluate and report; return the stop that cut the evaluation short, if one did."""
        began = time.monotonic()
        evaluation = backend.evaluate(self._go_on)
        if evaluation is None:
            return self._asked()
        loss = evaluation.loss
        self._pace.evaluation = time.monotonic() - began
        if self.step == 0:
            self.standing = self.standing.measured(loss)
        else:
            self.standing = self.standing.evaluated(self.step, loss)
        standing = self.standing
        self._tell(
            EvaluationReport(
                step=self.step,
                eval_loss=loss,
                values=dict(evaluation.values),
                is_best=standing.best_step == self.step,
                best_step=standing.best_step,
                best_loss=standing.best_loss,
                evaluations_without_improvement=standing.misses,
                patience=self._cadence.patience,
            )
        )
        level: Level = "info" if math.isfinite(loss) else "warning"
        self.log(words.after_evaluation(self.step, loss, standing), level)
        return None

    def _go_on(self) -> bool:
        faults.hit_sync("trainer.evaluate.batch")
        self._clock.advance()
        return self._asked() is None

    def _asked(self) -> RunEnd | None:
        """Return the stop to obey; after the last step nothing is left to be stopped."""
        if self.step >= self._cadence.total_steps:
            return None
        if self.step > 0 and self.step == self._plan.stop_at_step:
            return RunEnd.USER_STOPPED
        return self._stop.asked()

    def _warn_of_non_finite(self, done: StepDone) -> None:
        for name, value in {"loss": done.loss, **done.values}.items():
            if not math.isfinite(value):
                self.log(f"step {done.step}: {name} is {value}, not a finite number", "warning")

    def _save(
        self, backend: Backend, marks: Marks, end: RunEnd | None, *, snapshot: float | None = None
    ) -> None:
        """Make a checkpoint; ``snapshot`` is when its state was reached, now by default."""
        # Before step 1 there is nothing to keep.
        if not marks or self.step == 0:
            return
        began = time.monotonic()
        # A step may be saved by the cadence, left out by the agent, and then be the last one.
        name = f"checkpoint-{self.step}" + ("-last" if self.step == self._saved_step else "")

        def fill(folder: Path) -> None:
            faults.hit_sync("trainer.save.before")
            trainer = backend.save(folder)
            write_json(folder / STATE, self._state(trainer))
            (folder / SERIES).write_bytes(b"".join(self._series))
            write_json(folder / LINEAGE, self._lineage(backend, marks, end))

        path = write_folder(self._plan.output_dir / name, fill, passed=self._clock.advance)
        self._saved_step = self.step
        self._pace.save = time.monotonic() - began
        self._report(
            CheckpointReport(
                step=self.step,
                path=str(path),
                is_ordinary=marks.is_ordinary,
                is_best=marks.is_best,
                is_final=marks.is_final,
                resumable=True,
                eval_loss=self.standing.loss_at(self.step),
                snapshot_monotonic=began if snapshot is None else snapshot,
            )
        )
        self.log(words.after_save(self.step, marks))

    def _state(self, trainer: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state in the layout of transformers' TrainerState, ours as a callback's."""
        training = self._plan.spec.training
        return {
            "global_step": self.step,
            "epoch": self._epoch,
            "max_steps": self._cadence.total_steps,
            "eval_steps": training.eval_steps,
            "save_steps": training.save_steps,
            "logging_steps": 1,
            "train_batch_size": training.per_device_train_batch_size,
            "stateful_callbacks": {
                "lehr": {"standing": self.standing.as_json(), "trainer": dict(trainer)}
            },
        }

    def _lineage(self, backend: Backend, marks: Marks, end: RunEnd | None) -> dict[str, Any]:
        return {
            **lineage_of(self._plan),
            "step": self.step,
            "end": end if marks.is_final else None,
            "resumable": True,
            "world_size": 1,
            "environment": dict(backend.environment()),
        }

    def _tell(self, report: StepReport | EvaluationReport) -> None:
        self._series.append(encode(report))
        self._report(report)

    def _ending(self, end: RunEnd | None) -> Ending | None:
        if end is None:
            return None
        message = words.at_end(end, self.step, self.standing, self._cadence)
        self.log(message, "error" if end == RunEnd.USER_ERROR else "info")
        return Ending(end=end, message=f"{message}.")
