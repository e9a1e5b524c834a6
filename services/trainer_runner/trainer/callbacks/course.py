"""The course of a run, called back from transformers' training loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from lehr import faults
from lehr.training.plan import TrainingPlan
from services.trainer_runner.course import Course, Ending, Evaluation, StepDone
from services.trainer_runner.folders import Resumed
from services.trainer_runner.trainer.adapters import Adapter
from services.trainer_runner.trainer.environment import Environment
from services.trainer_runner.trainer.loop import Loop
from services.trainer_runner.trainer.state import RandomState, load_random


class RunEnded(Exception):  # noqa: N818 - no error: it leaves the library's loop
    """The run has come to its end."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.message)
        self.ending = ending


class TorchBackend:
    """Evaluates and saves the model that is being trained."""

    def __init__(
        self,
        plan: TrainingPlan,
        trainer: Loop,
        adapter: Adapter,
        *,
        environment: Environment,
        facts: Mapping[str, Any],
    ) -> None:
        self._plan = plan
        self._trainer = trainer
        self._adapter = adapter
        self._environment = environment
        self._facts = facts
        self.num_tokens = 0
        self._random = RandomState.now()

    def begin_step(self) -> None:
        """Remember what the next step draws from, for it may be dropped."""
        self._random = RandomState.now()

    def drop_step(self) -> None:
        """Take back what the passes of a step drew; gradients are no part of any checkpoint."""
        self._random.restore()
        self._trainer.drop_step()

    def evaluate(self, go_on: Callable[[], bool]) -> Evaluation | None:
        """Return what the validation rows give."""
        return self._trainer.evaluate_rows(go_on)

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Write weights, optimizer and random state."""
        self._adapter.save(self._trainer.model, self._plan, folder)
        faults.hit_sync("trainer.save.weights")
        schedule = self._trainer.save_state(folder)
        return {
            **self._facts,
            "schedule": dict(schedule),
            "method": self._trainer.own_state(),
            "num_tokens": self.num_tokens,
        }

    def environment(self) -> Mapping[str, Any]:
        """Return device, threads and versions."""
        return self._environment.told()


class CourseCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Hands each step to the course, and leaves the loop when the course says so."""

    def __init__(
        self,
        course: Course,
        backend: TorchBackend,
        trainer: Loop,
        *,
        rows: tuple[int, int],
        steps_per_epoch: int,
        resumed: Resumed | None,
    ) -> None:
        self._course = course
        self._backend = backend
        self._trainer = trainer
        self._rows = rows
        self._steps_per_epoch = steps_per_epoch
        self._resumed = resumed
        self._step_began = 0.0
        if resumed is not None:
            backend.num_tokens = resumed.trainer["num_tokens"]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate the base model, or what a stop had left undone."""
        if self._resumed is not None:
            # A checkpoint may be due here already, with the random state that it will need.
            load_random(self._resumed.folder)
        train_rows, validation_rows = self._rows
        ending = self._course.begin(
            self._backend, train_rows=train_rows, validation_rows=validation_rows
        )
        self._go_on_or_end(ending)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Order the rows anew."""
        self._trainer.batches.epoch = state.global_step // self._steps_per_epoch

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Obey a stop between two passes of a step."""
        self._course.passed()
        self._end_if_told(self._course.within_step(self._backend))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Obey a stop as long as the step has not changed the model."""
        self._end_if_told(self._course.within_step(self._backend))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any
    ) -> None:
        """Take the step that has just been made, with the numbers of the loop."""
        # The library would keep every step in memory.
        state.log_history.clear()
        sums, elapsed = self._trainer.sums, time.monotonic() - self._step_began
        self._backend.num_tokens += sums.tokens
        values = {
            "learning_rate": float(logs["learning_rate"]),
            "grad_norm": float(logs["grad_norm"]),
            "tokens_per_second": sums.tokens / elapsed,
            "num_tokens": float(self._backend.num_tokens),
            "trained_tokens": float(sums.trained_tokens),
            **self._trainer.charted(sums),
        }
        done = StepDone(
            step=state.global_step,
            epoch=state.epoch,
            loss=sums.loss,
            values=values,
            elapsed_seconds=elapsed,
        )
        self._go_on_or_end(self._course.after_step(self._backend, done))

    def _go_on_or_end(self, ending: Ending | None) -> None:
        self._end_if_told(ending)
        self._backend.begin_step()
        self._step_began = time.monotonic()

    def _end_if_told(self, ending: Ending | None) -> None:
        if ending is not None:
            raise RunEnded(ending)
