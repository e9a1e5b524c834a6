"""What a trainer reports is checked before it is believed, and a bad line costs only itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.training.ends import RunEnd
from lehr.training.reports import (
    CheckpointReport,
    DoneReport,
    EvaluationReport,
    LogReport,
    Report,
    RunningReport,
    StepReport,
    encode,
)
from services.trainer_runner.agent.intake import COMPLAINTS_MAX, REPORT_BYTES_MAX, Intake
from services.trainer_runner.agent.masking import Masker
from services.trainer_runner.agent.staging import Staged
from services.trainer_runner.agent.wall import WallClock


class FakeSpool:
    """Remembers what was added."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.lines: list[tuple[str, str]] = []

    def add_report(self, body: dict[str, Any]) -> None:
        self.reports.append(body)

    def add_line(self, text: str, *, level: str) -> None:
        self.lines.append((level, text))


class Told:
    """An intake with everything that it passed on."""

    def __init__(self, output_dir: Path = Path("/nowhere"), *, secrets: tuple[str, ...] = ()):
        self.spool = FakeSpool()
        self.staged: list[Staged] = []
        self.intake = Intake(
            self.spool,  # type: ignore[arg-type]  # as much of a spool as an intake uses.
            clock=WallClock(),
            masker=Masker(secrets),
            output_dir=output_dir,
            on_checkpoint=self.staged.append,
        )

    def report(self, *reports: Report) -> None:
        self.intake.take_reports(b"".join(encode(one) for one in reports))

    @property
    def steps(self) -> list[int]:
        return [body["step"] for body in self.spool.reports if body["kind"] == "step"]


def running() -> RunningReport:
    return RunningReport(total_steps=9, train_rows=1, validation_rows=1, start_step=0)


def a_step(step: int, **values: float) -> StepReport:
    return StepReport(step=step, epoch=0.1, values=values or {"loss": 1.0}, elapsed_seconds=0.5)


def an_evaluation(step: int, loss: float, *, best: bool) -> EvaluationReport:
    return EvaluationReport(
        step=step,
        eval_loss=loss,
        is_best=best,
        best_step=step,
        best_loss=loss if math.isfinite(loss) else None,
        evaluations_without_improvement=0,
        patience=3,
    )


def a_checkpoint(path: Path, **more: Any) -> CheckpointReport:
    told = {
        "step": 5,
        "path": str(path),
        "is_ordinary": True,
        "is_best": False,
        "is_final": False,
        "resumable": True,
        "snapshot_monotonic": monotonic(),
    }
    return CheckpointReport(**told | more)


def test_a_best_is_told_after_its_evaluation_if_it_is_finite() -> None:
    told = Told()

    told.report(
        running(),
        an_evaluation(1, 0.5, best=True),
        an_evaluation(2, math.nan, best=True),
        an_evaluation(3, 0.7, best=False),
    )

    assert [body["kind"] for body in told.spool.reports] == [
        "evaluation",
        "best",
        "evaluation",
        "evaluation",
    ]


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_reports_survive_every_border_of_reads(size: int) -> None:
    told = Told()
    data = b"".join(encode(one) for one in (running(), a_step(1), a_step(2)))

    for begin in range(0, len(data), size):
        told.intake.take_reports(data[begin : begin + size])

    assert told.steps == [1, 2]


@given(st.binary(max_size=400))
def test_no_bytes_on_the_report_pipe_do_harm(data: bytes) -> None:
    told = Told()

    told.intake.take_reports(data + b"\n")
    told.report(a_step(7))

    assert told.steps[-1:] == [7]


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b'{"kind":"nonsense"}',
        b'{"kind":"step","step":-1,"epoch":0,"values":{},"elapsed_seconds":1}',
        b'{"kind":"step","step":99999999999,"epoch":0,"values":{},"elapsed_seconds":1}',
        b"[" * 5000,
        b"x" * (REPORT_BYTES_MAX + 1),
        encode(a_step(1, **{f"v{number}": 1.0 for number in range(65)})).strip(),
    ],
)
def test_a_line_that_is_no_report_becomes_a_warning(line: bytes) -> None:
    told = Told()

    told.intake.take_reports(line + b"\n")
    told.report(a_step(2))

    assert told.steps == [2]
    assert [level for level, _ in told.spool.lines] == ["warning"]


def test_complaints_have_an_end() -> None:
    told = Told()

    told.intake.take_reports(b"nonsense\n" * 1000)

    assert len(told.spool.lines) == COMPLAINTS_MAX
    assert "Further ones are not told." in told.spool.lines[-1][1]


def test_a_checkpoint_in_the_output_folder_is_taken_in_once(tmp_path: Path) -> None:
    told = Told(tmp_path)
    (tmp_path / "checkpoint-5").mkdir()

    told.report(*[a_checkpoint(tmp_path / "checkpoint-5", is_final=True, eval_loss=math.inf)] * 2)

    (staged,) = told.staged
    assert (staged.step, staged.eval_loss, staged.is_final) == (5, "Infinity", True)
    assert told.intake.has_final


@pytest.mark.parametrize(
    "place",
    [
        lambda folder: folder.parent / "checkpoint-5",
        lambda folder: folder / ".." / "checkpoint-5",
        lambda folder: Path("/etc"),
        lambda folder: folder,
        lambda folder: folder / "link",
        lambda folder: folder / "checkpoint-5" / "inner",
    ],
)
def test_a_checkpoint_elsewhere_is_refused(tmp_path: Path, place: Callable[[Path], Path]) -> None:
    output = tmp_path / "output"
    (output / "checkpoint-5" / "inner").mkdir(parents=True)
    (output / "link").symlink_to("/etc")
    told = Told(output)

    told.report(a_checkpoint(place(output)))

    assert told.staged == []
    assert told.spool.lines[0][0] == "warning"


@pytest.mark.parametrize("snapshot", [math.nan, math.inf, -1.0, 0.0, 1e18])
def test_a_snapshot_that_cannot_be_is_taken_for_now(tmp_path: Path, snapshot: float) -> None:
    told = Told(tmp_path)
    (tmp_path / "checkpoint-5").mkdir()
    report = a_checkpoint(tmp_path / "checkpoint-5").model_copy(
        update={"snapshot_monotonic": snapshot}
    )

    told.intake._take_checkpoint(report)

    assert 0 < told.staged[0].snapshot <= monotonic()


def test_what_is_saved_after_a_stop_was_asked_for_is_the_last(tmp_path: Path) -> None:
    told = Told(tmp_path)
    (tmp_path / "checkpoint-5").mkdir()
    told.intake.is_stopping = True

    told.report(a_checkpoint(tmp_path / "checkpoint-5"))

    assert told.staged[0].must_stay


def test_a_backfill_comes_first_and_says_only_what_is_missing() -> None:
    told = Told()
    series = [
        encode(report).strip()
        for report in (
            a_step(1),
            a_step(2),
            an_evaluation(2, 0.5, best=True),
            a_step(3),
            a_step(4),
        )
    ]

    told.intake.backfill([*series, b"broken"], stored_step=2)
    told.report(running(), a_step(5))

    assert told.steps == [3, 4, 5]
    assert [body["kind"] for body in told.spool.reports] == ["evaluation", *["step"] * 3]
    assert {body.get("total_steps") for body in told.spool.reports} == {None, 9}


def test_secrets_are_masked_in_logs_and_last_words() -> None:
    told = Told(secrets=("very-secret-key",))

    told.report(
        LogReport(text="a very-secret-key\nb"),
        DoneReport(end=RunEnd.USER_ERROR, message="very-secret-key"),
    )

    assert told.spool.lines == [("info", "a [masked]"), ("info", "b")]
    assert told.intake.done is not None
    assert told.intake.done.message == "[masked]"


def test_only_last_words_about_memory_count() -> None:
    told = Told()

    told.intake.take_output(b"torch.OutOfMemoryError: CUDA out of memory. Tried\n")
    assert told.intake.spoke_of_memory
    told.intake.take_output(b"line\n" * 60)

    assert not told.intake.spoke_of_memory


def test_words_of_a_trainer_may_hold_anything() -> None:
    told = Told()

    told.report(
        a_step(1, **{"loss\0\ud800": 1.0}),
        LogReport(text="half \ud800 and \0"),
        DoneReport(end=RunEnd.USER_ERROR, message="bad row: \ud83d and \0"),
    )

    assert told.intake.done is not None
    assert told.intake.done.end is RunEnd.USER_ERROR
    assert told.intake.done.message == "bad row: \\ud83d and \\x00"
    assert told.spool.lines == [("info", "half \\ud800 and \\x00")]
    assert list(told.spool.reports[0]["values"]) == ["loss\\x00\\ud800"]


def test_a_nul_that_is_written_to_the_pipe_past_our_own_code_is_escaped_too() -> None:
    told = Told()

    told.intake.take_reports(b'{"kind":"done","end":"USER_ERROR","message":"a\\u0000b"}\n')

    assert told.intake.done is not None
    assert told.intake.done.message == "a\\x00b"


def test_a_checkpoint_at_a_path_that_cannot_be_is_refused(tmp_path: Path) -> None:
    told = Told(tmp_path)

    told.report(a_checkpoint(tmp_path / "check\0point"))

    assert not told.staged
    assert "outside of its output folder" in told.spool.lines[0][1]
