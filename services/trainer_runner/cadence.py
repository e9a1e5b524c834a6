"""When a run evaluates, saves and ends: decisions from values, the same for every trainer."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from lehr.training.ends import RunEnd
from lehr.training.reports import Number

#: Training losses in a row that are not finite before a run ends: such a model never recovers,
#: but a single overflow may pass.
NON_FINITE_LIMIT = 5

_NUMBER: TypeAdapter[float | None] = TypeAdapter(Number | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a run must remember to decide; part of every checkpoint."""

    baseline_loss: float | None = None
    """Validation loss of the base model; never Best, for there is no checkpoint of it."""
    best_step: int | None = None
    best_loss: float | None = None
    """Lowest finite validation loss so far, unrounded; ties keep the earlier step."""
    misses: int = 0
    """Evaluations in a row without a strictly lower loss."""
    evaluated_step: int | None = None
    """The step that was evaluated last; 0 is the base model."""
    eval_loss: float | None = None
    """What that evaluation gave."""
    non_finite: int = 0
    """Training losses in a row that are not finite."""

    def measured(self, loss: float) -> Standing:
        """Return the standing after the base model was evaluated."""
        return replace(self, baseline_loss=loss, evaluated_step=0, eval_loss=loss)

    def evaluated(self, step: int, loss: float) -> Standing:
        """Return the standing after ``step`` was evaluated."""
        seen = replace(self, evaluated_step=step, eval_loss=loss)
        if math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss):
            return replace(seen, best_step=step, best_loss=loss, misses=0)
        return replace(seen, misses=self.misses + 1)

    def trained(self, loss: float) -> Standing:
        """Return the standing after an optimiser step with this training loss."""
        return replace(self, non_finite=0 if math.isfinite(loss) else self.non_finite + 1)

    def loss_at(self, step: int) -> float | None:
        """Return the validation loss of ``step`` if that is what was evaluated last."""
        return self.eval_loss if self.evaluated_step == step else None

    def as_json(self) -> dict[str, Any]:
        """Return what ``from_json`` reads, with numbers that are not finite as words."""
        told = asdict(self)
        for name in ("baseline_loss", "eval_loss"):
            told[name] = _NUMBER.dump_python(told[name], mode="json")
        return told

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Standing:
        """Read what ``as_json`` gave."""
        words = {
            name: _NUMBER.validate_python(told[name]) for name in ("baseline_loss", "eval_loss")
        }
        return cls(**{**told, **words})


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Why a checkpoint is made; none of them means that none is made."""

    is_ordinary: bool
    is_best: bool
    is_final: bool

    def __bool__(self) -> bool:
        return self.is_ordinary or self.is_best or self.is_final


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """The rhythm of a run."""

    total_steps: int
    eval_steps: int
    save_steps: int
    patience: int | None
    """Evaluations in a row without a new low that end the run; None never does."""
    evaluates: bool
    """Whether there are validation rows."""

    def is_evaluation_due(self, step: int, standing: Standing) -> bool:
        """Whether ``step`` is to be evaluated and has not been; 0 is the base model."""
        on_beat = step % self.eval_steps == 0 or step == self.total_steps
        return self.evaluates and on_beat and standing.evaluated_step != step

    def end_at(self, step: int, standing: Standing) -> RunEnd | None:
        """Return the end that the run has come to by itself, if it has.

        A run whose patience ends with its last step has done what was asked: it is complete.
        """
        if standing.non_finite >= NON_FINITE_LIMIT:
            return RunEnd.USER_ERROR
        if step >= self.total_steps:
            return RunEnd.COMPLETED
        is_judged = standing.evaluated_step == step and step > 0
        if is_judged and self.patience is not None and standing.misses >= self.patience:
            return RunEnd.EARLY_STOPPED
        return None

    def marks_at(self, step: int, standing: Standing, end: RunEnd | None) -> Marks:
        """Return why a checkpoint of ``step`` is made, ``end`` being how the run ends there."""
        if end == RunEnd.USER_ERROR:
            return Marks(is_ordinary=False, is_best=False, is_final=False)
        is_final = end in (RunEnd.COMPLETED, RunEnd.EARLY_STOPPED)
        is_stop = end is not None and not is_final
        return Marks(
            is_ordinary=step % self.save_steps == 0 or is_stop,
            is_best=standing.best_step == step,
            is_final=is_final,
        )

    def evaluations_left(self, step: int) -> int:
        """Count the evaluations still to come after ``step``, if nothing ends the run early."""
        return self._left(step, self.eval_steps) if self.evaluates else 0

    def saves_left(self, step: int) -> int:
        """Count the ordinary checkpoints and the final one still to come after ``step``."""
        return self._left(step, self.save_steps)

    def _left(self, step: int, every: int) -> int:
        if step >= self.total_steps:
            return 0
        is_last_extra = self.total_steps % every != 0
        return self.total_steps // every - step // every + is_last_extra
