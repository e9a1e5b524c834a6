"""How long the rest of a run will take, from how long its parts took so far."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from services.trainer_runner.cadence import Cadence

#: Steps that an estimate looks back on: enough to even out lengths, few enough to follow a change.
_RECENT = 20


@dataclass(slots=True, kw_only=True)
class Pace:
    """Seconds that steps, evaluations and saves took."""

    steps: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    evaluation: float = 0.0
    """The latest evaluation."""
    save: float = 0.0
    """The latest checkpoint."""

    def seconds_left(self, cadence: Cadence, step: int) -> float | None:
        """Estimate the seconds from after ``step`` to the end of the schedule."""
        if not self.steps:
            return None
        a_step = sum(self.steps) / len(self.steps)
        return (
            a_step * (cadence.total_steps - step)
            + self.evaluation * cadence.evaluations_left(step)
            + self.save * cadence.saves_left(step)
        )
