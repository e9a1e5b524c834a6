"""A job, live: where it is, its numbers, its evaluations, checkpoints and cost as they happen."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from lehr.api.billing.v1 import billing_pb2
from lehr.api.scheduler.v1 import job_pb2
from lehr.cli.output import clock, console, money, size
from lehr.client import AsyncClient
from lehr.client.jobs import RESTING
from lehr.errors import PlatformError

LOOK_SECONDS = 0.5
ABSENT = ("JOB_NOT_FOUND",)
"""What services say that have not heard of a new job yet."""
ASK_EVERY = 2
"""Checkpoints and cost are asked for at every so many looks."""

T = TypeVar("T")

_WORDS = {
    job_pb2.JOB_STATE_QUEUED: "in the queue",
    job_pb2.JOB_STATE_STARTING: "starting",
    job_pb2.JOB_STATE_RUNNING: "training",
    job_pb2.JOB_STATE_STOPPING: "stopping",
    job_pb2.JOB_STATE_STOPPED: "stopped",
    job_pb2.JOB_STATE_SUCCEEDED: "succeeded",
    job_pb2.JOB_STATE_FAILED: "failed",
}


async def follow(
    client: AsyncClient,
    job_id: str,
    *,
    out: Console = console,
    look_seconds: float = LOOK_SECONDS,
) -> job_pb2.Job:
    """Show a job until it rests or ends, and return it; a short outage is waited out."""
    view = _View(client, job_id, out)
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[numbers]}"),
    )
    with Progress(*columns, console=out, transient=True) as bars:
        bar = bars.add_task("asking", total=1, numbers="")
        looks = 0
        while True:
            job = await view.look(asks=looks % ASK_EVERY == 0)
            if job is None:
                bars.update(bar, description="no answer, waiting")
            else:
                bars.update(
                    bar,
                    description=_WORDS.get(job.state, "?"),
                    total=max(1, job.progress.total_steps),
                    completed=job.progress.step,
                    numbers=view.numbers(job),
                )
                if job.state in RESTING:
                    await view.look(asks=True)
                    return job
            looks += 1
            await asyncio.sleep(look_seconds)


class _View:
    """What was shown already, so that everything is shown once."""

    def __init__(self, client: AsyncClient, job_id: str, out: Console) -> None:
        self._client = client
        self._job_id = job_id
        self._out = out
        self._state = ""
        self._evaluated = -1
        self._is_away = False
        self._checkpoints: set[str] = set()
        self._final = ""
        self._best_loss: float | None = None
        self._cost: billing_pb2.Cost | None = None

    async def look(self, *, asks: bool) -> job_pb2.Job | None:
        """Ask for what is new and print it; None while the platform does not answer."""
        job = await _or_none(self._client.jobs.get(self._job_id))
        if job is None:
            if not self._is_away:
                self._out.print("[yellow]the platform does not answer[/], waiting")
            self._is_away = True
            return None
        self._is_away = False
        self._tell_state(job)
        if asks:
            await self._tell_evaluations()
            await self._tell_checkpoints()
            cost = await _or_none(self._client.jobs.cost(self._job_id), absent=ABSENT)
            self._cost = cost or self._cost
        return job

    def numbers(self, job: job_pb2.Job) -> str:
        """Return the line of numbers beside the bar."""
        parts = []
        values = job.progress.values
        for name, label in (("loss", "loss"), ("learning_rate", "lr"), ("grad_norm", "grad")):
            if name in values:
                parts.append(f"{label} {_short(values[name])}")
        if "tokens_per_second" in values:
            parts.append(f"{float(values['tokens_per_second']):.0f} tok/s")
        if job.progress.HasField("remaining_seconds") and job.state == job_pb2.JOB_STATE_RUNNING:
            parts.append(f"{clock(job.progress.remaining_seconds)} left")
        if self._cost is not None:
            parts.append(money(self._cost.total))
        return " · ".join(parts)

    def _tell_state(self, job: job_pb2.Job) -> None:
        words = _WORDS.get(job.state, "?")
        told = f"{words} {job.state}"
        if told == self._state:
            return
        self._state = told
        where = f" on {job.runs[-1].tier}" if job.runs and job.state not in RESTING else ""
        why = job.end_reason if job.state in RESTING else ""
        if job.state == job_pb2.JOB_STATE_QUEUED:
            why = job.state_message
        detail = f": {why}" if why else ""
        self._out.print(f"[cyan]{words}[/]", end="")
        self._out.print(f"{where}{detail}", markup=False, soft_wrap=True)

    async def _tell_evaluations(self) -> None:
        points = await _or_none(
            self._client.jobs.metrics(
                self._job_id, names=("eval_loss",), after_step=self._evaluated
            ),
            absent=ABSENT,
        )
        for point in points or ():
            self._evaluated = point.step
            mark = self._mark(point.step, point.value)
            self._out.print(f"  step {point.step:>5}  validation loss {_short(point.value)}{mark}")

    def _mark(self, step: int, value: str) -> str:
        if step == 0:
            # Nothing was trained yet: what Best is compared with later, never Best itself.
            return "  (base model)"
        loss = _number(value)
        if not math.isfinite(loss) or (self._best_loss is not None and loss >= self._best_loss):
            return ""
        self._best_loss = loss
        return "  [green]Best[/]"

    async def _tell_checkpoints(self) -> None:
        answer = _or_none(self._client.checkpoints.list(self._job_id), absent=ABSENT)
        for one in await answer or ():
            if one.checkpoint_id in self._checkpoints:
                if one.is_final and self._final != one.checkpoint_id:
                    self._out.print(f"  step {one.step:>5}  checkpoint is final")
                    self._final = one.checkpoint_id
                continue
            self._checkpoints.add(one.checkpoint_id)
            self._final = one.checkpoint_id if one.is_final else self._final
            flags = " ".join(
                word for word, is_so in (("Best", one.is_best), ("final", one.is_final)) if is_so
            )
            self._out.print(
                f"  step {one.step:>5}  checkpoint committed, {size(one.size_bytes)} {flags}"
            )


async def _or_none(answer: Awaitable[T], *, absent: tuple[str, ...] = ()) -> T | None:
    """Await an answer; None when the platform cannot give it right now, or not yet."""
    try:
        return await answer
    except PlatformError as error:
        if error.retryable or error.reason in absent:
            return None
        raise


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


def _short(value: str) -> str:
    try:
        return f"{float(value):.4g}"
    except ValueError:
        return value
