"""How far a job is, as its runs tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """A run took steps."""

    run_id: str
    epoch: int
    sequence: int
    """Place of the newest of its reports; lower or equal ones say nothing new."""
    step: int
    total_steps: int
    remaining_seconds: float | None
    values: Mapping[str, str]
    """Last values by name, as text because they need not be finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A run evaluated its validation rows."""

    run_id: str
    epoch: int
    sequence: int
    eval_loss: str
    baseline_loss: float | None
    """Set by the evaluation of the base model, at step 0."""
    best_step: int | None
    best_loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is known of a job's progress."""

    step: int = 0
    total_steps: int = 0
    remaining_seconds: float | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    best_step: int | None = None
    best_loss: float | None = None
    baseline_loss: float | None = None
    eval_loss: str = ""
