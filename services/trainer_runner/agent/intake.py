"""Takes in what a trainer prints and reports, and believes none of it unchecked."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from pydantic import ValidationError

from lehr.events.base import number_to_json
from lehr.logs import get_logger
from lehr.training.reports import (
    AnyReport,
    CheckpointReport,
    DoneReport,
    EvaluationReport,
    LogReport,
    RunningReport,
    StepReport,
    decode,
)
from services.trainer_runner.agent.lines import Lines
from services.trainer_runner.agent.masking import Masker
from services.trainer_runner.agent.spool import Spool
from services.trainer_runner.agent.staging import Staged
from services.trainer_runner.agent.wall import WallClock

REPORT_BYTES_MAX = 1024 * 1024
STEP_MAX = 2**31 - 1
VALUES_MAX = 64
TEXT_MAX = 64 * 1024
COMPLAINTS_MAX = 20

_LAST_WORDS = re.compile(
    r"out of memory|OutOfMemoryError|can't allocate memory|^MemoryError", re.IGNORECASE
)
_WORDS_KEPT = 50


class Intake:
    """Everything that comes out of one trainer, turned into spooled rows and facts about it."""

    def __init__(
        self,
        spool: Spool,
        *,
        clock: WallClock,
        masker: Masker,
        output_dir: Path,
        on_checkpoint: Callable[[Staged], None],
    ) -> None:
        self.running: RunningReport | None = None
        self.done: DoneReport | None = None
        self.has_final = False
        """A final checkpoint was taken in."""
        self.longest_step = 0.0
        """Seconds."""
        self.last_step = 0.0
        """Seconds that the last step took."""
        self.save_seconds = 0.0
        """Longest time from a snapshot to its complete folder."""
        self.is_stopping = False
        """The trainer was asked to stop: what it saves now is what the job resumes from."""
        self._spool = spool
        self._clock = clock
        self._masker = masker
        self._output_dir = output_dir
        self._on_checkpoint = on_checkpoint
        self._output = Lines(masker=masker)
        self._reports = _ReportLines()
        self._backfill: Sequence[bytes] = ()
        self._stored_step = 0
        self._seen: set[str] = set()
        self._since_last_words = _WORDS_KEPT
        self._complaints = 0
        self._log = get_logger()

    @property
    def spoke_of_memory(self) -> bool:
        """Whether its last lines say that it ran out of memory."""
        return self._since_last_words < _WORDS_KEPT

    def backfill(self, lines: Sequence[bytes], *, stored_step: int) -> None:
        """Say again what a resumed run's checkpoint tells of steps that telemetry does not have.

        It is said before the first report of the run, once the total number of steps is known.
        """
        self._backfill = lines
        self._stored_step = stored_step

    def take_output(self, data: bytes) -> None:
        """Take bytes that were printed; ``b""`` is the end."""
        for text in self._output.feed(data) if data else self._output.close():
            self._since_last_words += 1
            if _LAST_WORDS.search(text[:4096]):
                self._since_last_words = 0
            self._spool.add_line(text, level="output")

    def take_reports(self, data: bytes) -> None:
        """Take bytes of the report pipe; ``b""`` is the end."""
        for line in self._reports.feed(data) if data else self._reports.close():
            if line is None:
                self._complain(f"a report longer than {REPORT_BYTES_MAX} bytes")
                continue
            try:
                report = decode(line)
            except (ValidationError, RecursionError):
                self._complain("a line that is no report")
                continue
            if problem := _problem(report):
                self._complain(problem)
                continue
            self._take(report)

    def note(self, text: str, *, level: str = "info") -> None:
        """Add a line of our own to the job's log."""
        self._spool.add_line(text, level=level)

    def _take(self, report: AnyReport) -> None:
        match report:
            case RunningReport():
                self.running = self.running or report
                self._say_backfill()
            case StepReport():
                self.last_step = max(0.0, report.elapsed_seconds)
                self.longest_step = max(self.longest_step, self.last_step)
                self._add_step(report)
            case EvaluationReport():
                self._add_evaluation(report, is_new=True)
            case CheckpointReport():
                self._take_checkpoint(report)
            case LogReport():
                text = self._masker.mask_text(report.text[:TEXT_MAX])
                for line in text.split("\n"):
                    self._spool.add_line(line, level=report.level)
            case DoneReport():
                message = self._masker.mask_text(report.message[:TEXT_MAX])
                self.done = self.done or report.model_copy(update={"message": message})

    def _say_backfill(self) -> None:
        lines, self._backfill = self._backfill, ()
        for line in lines:
            try:
                report = decode(line)
            except (ValidationError, RecursionError):
                self._complain("a line in its series.jsonl that is no report")
                continue
            if _problem(report):
                continue
            if isinstance(report, StepReport) and report.step > self._stored_step:
                self._add_step(report)
            # An evaluation follows its step, so that of the last stored step may be missing.
            if isinstance(report, EvaluationReport) and report.step >= self._stored_step:
                self._add_evaluation(report, is_new=False)

    def _add_step(self, report: StepReport) -> None:
        self._spool.add_report(
            {
                "kind": "step",
                "step": report.step,
                "time": self._clock.now().isoformat(),
                "values": _values(report.values),
                "total_steps": self.running.total_steps if self.running else 0,
                "remaining_seconds": _finite(report.remaining_seconds),
            }
        )

    def _add_evaluation(self, report: EvaluationReport, *, is_new: bool) -> None:
        time = self._clock.now().isoformat()
        self._spool.add_report(
            {
                "kind": "evaluation",
                "step": report.step,
                "time": time,
                "eval_loss": number_to_json(report.eval_loss),
                "values": _values(report.values),
                "best_step": report.best_step,
                "best_loss": _finite(report.best_loss),
                "evaluations_without_improvement": report.evaluations_without_improvement,
                "patience": report.patience,
            }
        )
        if is_new and report.is_best and math.isfinite(report.eval_loss):
            best = {"kind": "best", "step": report.step, "time": time}
            self._spool.add_report({**best, "eval_loss": report.eval_loss})

    def _take_checkpoint(self, report: CheckpointReport) -> None:
        now = monotonic()
        path = Path(report.path)
        inside = os.path.realpath(self._output_dir)
        if not _is_in(path, inside):
            self._complain("a checkpoint outside of its output folder")
            return
        if path.name in self._seen:
            self._complain(f"the checkpoint {path.name} twice")
            return
        self._seen.add(path.name)
        snapshot = report.snapshot_monotonic
        if not (math.isfinite(snapshot) and 0.0 < snapshot <= now):
            snapshot = now
        self.save_seconds = max(self.save_seconds, min(now - snapshot, 3600.0))
        self.has_final = self.has_final or report.is_final
        self._on_checkpoint(
            Staged(
                path=Path(inside) / path.name,
                step=report.step,
                is_ordinary=report.is_ordinary,
                is_best=report.is_best,
                is_final=report.is_final,
                is_resumable=report.resumable,
                is_last=self.is_stopping,
                eval_loss=_text(report.eval_loss),
                snapshot=snapshot,
            )
        )

    def _complain(self, what: str) -> None:
        self._complaints += 1
        if self._complaints > COMPLAINTS_MAX:
            return
        more = " Further ones are not told." if self._complaints == COMPLAINTS_MAX else ""
        self._log.warning("report_refused", what=what)
        self.note(f"The trainer reported {what}; it was ignored.{more}", level="warning")


class _ReportLines:
    """Whole lines of bounded length; None stands for one that was too long."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        *whole, rest = data.split(b"\n")
        found: list[bytes | None] = []
        for end in whole:
            self._grow(end)
            found.append(None if self._skipping else bytes(self._rest))
            self._rest.clear()
            self._skipping = False
        self._grow(rest)
        return [line for line in found if line is None or line.strip()]

    def close(self) -> list[bytes | None]:
        return self.feed(b"\n") if self._rest or self._skipping else []

    def _grow(self, data: bytes) -> None:
        if len(self._rest) + len(data) > REPORT_BYTES_MAX:
            self._skipping = True
            self._rest.clear()
        if not self._skipping:
            self._rest += data


def _is_in(path: Path, folder: str) -> bool:
    """Say whether a path is directly in a folder and no link; one with a NUL is nowhere."""
    if "\0" in str(path):
        return False
    return os.path.realpath(path) == os.path.join(folder, path.name) and not path.is_symlink()


def _problem(report: AnyReport) -> str | None:
    """Say what cannot be true in a report that has the right shape."""
    numbers = [value for _, value in report if isinstance(value, int)]
    if any(not 0 <= number <= STEP_MAX for number in numbers):
        return "a negative or absurdly large number"
    values = getattr(report, "values", {})
    if len(values) > VALUES_MAX or any(len(name) > 100 for name in values):
        return f"{len(values)} values in one report, or a name that is too long"
    if isinstance(report, StepReport) and not math.isfinite(report.elapsed_seconds):
        return "a step that took no finite time"
    return None


def _values(values: dict[str, float]) -> dict[str, float | str]:
    return {name: number_to_json(value) for name, value in values.items()}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _text(value: float | None) -> str:
    return "" if value is None else str(number_to_json(value))
