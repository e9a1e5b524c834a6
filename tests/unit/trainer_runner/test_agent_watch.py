"""What a trainer is told when it has to stop for more than one reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lehr.training.ends import RunEnd
from services.trainer_runner.agent.timing import Timing
from services.trainer_runner.agent.watch import Watch


class Heard:
    """A trainer that only listens."""

    def __init__(self) -> None:
        self.stops: list[tuple[RunEnd, float | None]] = []

    def ask_to_stop(self, reason: RunEnd, *, until: float | None) -> None:
        """Remember what was said."""
        self.stops.append((reason, until))

    def kill(self) -> None:
        """Have nothing to save, as nothing was computed."""


def a_watch(child: Any, folder: Path) -> Watch:
    return Watch(
        child,
        SimpleNamespace(done=None, is_stopping=False),  # type: ignore[arg-type]
        progress_file=folder / "progress",
        timing=Timing(),
        on_begin=lambda _: None,
        on_stop=lambda _: None,
    )


def test_who_stops_a_run_that_is_at_its_limit_leaves_it_no_more_time(tmp_path: Path) -> None:
    heard = Heard()
    watch = a_watch(heard, tmp_path)

    watch.ask(RunEnd.BUDGET_EXHAUSTED, until=77.0)
    watch.ask(RunEnd.USER_STOPPED)
    watch.ask(RunEnd.USER_STOPPED)

    assert heard.stops == [(RunEnd.BUDGET_EXHAUSTED, 77.0), (RunEnd.BUDGET_EXHAUSTED, None)]
    assert watch.stop_reason is RunEnd.BUDGET_EXHAUSTED


def test_a_stop_is_said_once(tmp_path: Path) -> None:
    heard = Heard()
    watch = a_watch(heard, tmp_path)

    watch.ask(RunEnd.USER_STOPPED)
    watch.ask(RunEnd.BUDGET_EXHAUSTED, until=77.0)
    watch.ask(RunEnd.USER_STOPPED)

    assert heard.stops == [(RunEnd.USER_STOPPED, None)]
