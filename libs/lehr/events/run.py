"""Facts about runs, said by the trainer runner while a run computes; each is a batch.

``report_sequence`` counts a run's reports from 1 without a gap, so that a reader knows what it
misses.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import Field

from lehr.events.base import Event, Fact, Number


class RunEvent(Event):
    """What every fact about a run carries."""

    NOUN: ClassVar[str] = "run"

    run_id: str
    job_id: str
    epoch: int
    """Fencing number of the lease; readers refuse less than the newest they know."""

    @property
    def subject_id(self) -> str:
        """The run."""
        return self.run_id


class StepPoint(Fact):
    """The values of one optimiser step."""

    step: int
    time: datetime
    values: dict[str, Number]


class RunProgressed(RunEvent):
    """Steps were taken."""

    PAST: ClassVar[str] = "progressed"

    first_sequence: int
    last_sequence: int
    points: tuple[StepPoint, ...]
    total_steps: int
    remaining_seconds: float | None = None


class RunEvaluated(RunEvent):
    """The validation split was evaluated; step 0 is the base model."""

    PAST: ClassVar[str] = "evaluated"

    report_sequence: int
    step: int
    time: datetime
    eval_loss: Number
    values: dict[str, Number] = Field(default_factory=dict)
    best_step: int | None = None
    best_loss: float | None = None
    evaluations_without_improvement: int = 0
    patience: int | None = None


class RunBest(RunEvent):
    """A strictly lower finite validation loss was seen; its checkpoint follows."""

    PAST: ClassVar[str] = "best"

    report_sequence: int
    step: int
    time: datetime
    eval_loss: float


class LogEntry(Fact):
    """One line of a run's log."""

    sequence: int
    time: datetime
    level: str
    text: str


class RunLogged(RunEvent):
    """Lines were written to the job's log."""

    PAST: ClassVar[str] = "logged"

    lines: tuple[LogEntry, ...]
