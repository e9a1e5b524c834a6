"""What a trainer says to its agent: one JSON object a line on the report pipe.

Numbers that are not finite travel as "NaN", "Infinity" and "-Infinity", so that every line is
strict JSON (RFC 8259).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
)

from lehr.text import storable
from lehr.training.ends import RunEnd

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _read(value: Any) -> Any:
    return _WORDS.get(value, value) if isinstance(value, str) else value


def _write(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


Number = Annotated[float, BeforeValidator(_read), PlainSerializer(_write, when_used="json")]

#: Words of a trainer, often those of an exception: they may hold anything, and must not cost the
#: report.
Words = Annotated[str, AfterValidator(storable)]


class Report(BaseModel):
    """Base of all reports."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RunningReport(Report):
    """The first batch is about to be computed: billing starts here."""

    kind: Literal["running"] = "running"
    total_steps: int
    train_rows: int
    validation_rows: int
    start_step: int
    """0, or the step of the checkpoint that the run continues from."""


class StepReport(Report):
    """One optimiser step was taken."""

    kind: Literal["step"] = "step"
    step: int
    epoch: float
    values: dict[Words, Number]
    """``loss`` (nats per trained token), ``learning_rate``, ``grad_norm`` and others."""
    elapsed_seconds: float
    """Wall seconds of this step."""
    remaining_seconds: float | None = None
    """Estimate of what is left, evaluations and saves included."""


class EvaluationReport(Report):
    """The validation split was evaluated; step 0 is the base model."""

    kind: Literal["evaluation"] = "evaluation"
    step: int
    eval_loss: Number
    """Mean loss of the trained tokens of the validation rows, nats."""
    values: dict[Words, Number] = {}
    is_best: bool
    best_step: int | None
    best_loss: float | None
    evaluations_without_improvement: int
    patience: int | None


class CheckpointReport(Report):
    """A checkpoint folder is complete on the node's disk and will not change any more."""

    kind: Literal["checkpoint"] = "checkpoint"
    step: int
    path: str
    is_ordinary: bool
    """Made by the cadence or by a stop, so that retention counts it."""
    is_best: bool
    is_final: bool
    resumable: bool
    eval_loss: Number | None = None
    """Validation loss at this step where it was evaluated."""
    snapshot_monotonic: float
    """CLOCK_MONOTONIC seconds at which the state was taken."""


class LogReport(Report):
    """A line for the job's log."""

    kind: Literal["log"] = "log"
    level: Literal["info", "warning", "error"] = "info"
    text: Words


class DoneReport(Report):
    """The last report of a run."""

    kind: Literal["done"] = "done"
    end: RunEnd
    message: Words = ""
    step: int = 0
    best_step: int | None = None
    best_loss: float | None = None
    baseline_loss: Number | None = None


AnyReport = Annotated[
    RunningReport | StepReport | EvaluationReport | CheckpointReport | LogReport | DoneReport,
    Field(discriminator="kind"),
]
_ADAPTER: TypeAdapter[AnyReport] = TypeAdapter(AnyReport)


def encode(report: Report) -> bytes:
    """Return one line of strict JSON with its newline."""
    return report.model_dump_json().encode() + b"\n"


def decode(line: bytes) -> AnyReport:
    """Read one line; raise ``pydantic.ValidationError`` when it is not a report."""
    return _ADAPTER.validate_json(line)
