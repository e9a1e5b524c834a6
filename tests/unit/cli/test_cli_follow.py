"""The live view of a job: everything is told once, in words, whatever the platform does."""

import io
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from rich.console import Console

from lehr.api.billing.v1 import billing_pb2
from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2
from lehr.api.common.v1.common_pb2 import Money
from lehr.api.scheduler.v1 import job_pb2
from lehr.api.telemetry.v1 import telemetry_pb2
from lehr.cli.follow import follow
from lehr.errors import NotFound, PermissionDenied, PlatformError, Unavailable

QUEUED, STARTING = job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_STARTING
RUNNING, SUCCEEDED = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED
STOPPING, STOPPED = job_pb2.JOB_STATE_STOPPING, job_pb2.JOB_STATE_STOPPED
FAILED = job_pb2.JOB_STATE_FAILED

Answer = Any
"""What a call gives: a value, or a PlatformError to raise."""


def a_job(state: job_pb2.JobState.ValueType = RUNNING, **fields: Any) -> job_pb2.Job:
    """Return a job in a state."""
    return job_pb2.Job(job_id="job_1", state=state, **fields)


def an_evaluation(step: int, value: str) -> telemetry_pb2.Point:
    """Return a validation loss."""
    return telemetry_pb2.Point(step=step, name="eval_loss", value=value)


def a_checkpoint(step: int, **flags: bool) -> checkpoint_store_pb2.Checkpoint:
    """Return a committed checkpoint."""
    return checkpoint_store_pb2.Checkpoint(
        checkpoint_id=f"ckpt_{step}", step=step, size_bytes=2048, **flags
    )


def _next(answers: Iterator[Answer]) -> Any:
    answer = next(answers)
    if isinstance(answer, PlatformError):
        raise answer
    return answer


@dataclass
class Fake:
    """Answers what a script says, the last answer for ever; it stands for a whole client."""

    looks: list[Answer] = field(default_factory=lambda: [a_job(RUNNING), a_job(SUCCEEDED)])
    evaluations: Answer = ()
    saved: list[Answer] = field(default_factory=lambda: [()])
    price: Answer = None

    def __post_init__(self) -> None:
        self.jobs = self.checkpoints = self
        self._looks, self._saved = _for_ever(self.looks), _for_ever(self.saved)

    async def get(self, job_id: str) -> job_pb2.Job:
        return _next(self._looks)

    async def metrics(self, job_id: str, *, names: Any, after_step: int) -> Any:
        found = _next(iter([self.evaluations]))
        return [point for point in found if point.step > after_step]

    async def list(self, job_id: str) -> Any:
        return _next(self._saved)

    async def cost(self, job_id: str) -> Any:
        return _next(iter([self.price or NotFound("none yet", reason="JOB_NOT_FOUND")]))


def _for_ever(answers: list[Answer]) -> Iterator[Answer]:
    return itertools.chain(answers, itertools.repeat(answers[-1]))


Show = Callable[..., Any]


@pytest.fixture
def told() -> Show:
    """Follow a job of a fake to its end and return the lines that were printed."""

    async def show(**script: Any) -> list[str]:
        out = io.StringIO()
        fake: Any = Fake(**script)
        console = Console(file=out, width=200, emoji=False)
        await follow(fake, "job_1", out=console, look_seconds=0.0)
        return [line.strip() for line in out.getvalue().splitlines() if line.strip()]

    return show


async def test_each_state_is_told_once_in_plain_words(told: Show) -> None:
    states = [QUEUED, QUEUED, STARTING, RUNNING, RUNNING, STOPPING, STOPPED]

    lines = await told(looks=[a_job(state) for state in states])

    assert lines == ["in the queue", "starting", "training", "stopping", "stopped"]


@pytest.mark.parametrize(
    ("state", "words"), [(SUCCEEDED, "succeeded"), (FAILED, "failed"), (STOPPED, "stopped")]
)
async def test_a_job_that_rests_is_told_with_its_reason_and_left(
    told: Show, state: job_pb2.JobState.ValueType, words: str
) -> None:
    lines = await told(looks=[a_job(state, end_reason="BECAUSE")])

    assert lines == [f"{words}: BECAUSE"]


async def test_the_tier_and_what_the_job_waits_for_are_told(told: Show) -> None:
    waits = a_job(QUEUED, state_message="waits for [/l40s]")
    starts = a_job(STARTING, runs=[job_pb2.Run(tier="l40s")])

    lines = await told(looks=[waits, starts, a_job(SUCCEEDED)])

    assert lines == ["in the queue: waits for [/l40s]", "starting on l40s", "succeeded"]


async def test_the_job_is_returned_as_it_ended() -> None:
    fake: Any = Fake(looks=[a_job(RUNNING), a_job(FAILED, end_reason="OUT_OF_MEMORY")])

    job = await follow(fake, "job_1", out=Console(file=io.StringIO()), look_seconds=0.0)

    assert (job.state, job.end_reason) == (FAILED, "OUT_OF_MEMORY")


@pytest.mark.parametrize(
    ("losses", "marks"),
    [
        ("2.0 1.5 1.0", ["base", "Best", "Best"]),
        ("2.0 2.5 2.2", ["base", "Best", "Best"]),
        ("2.0 1.5 1.5 1.6 1.4", ["base", "Best", "", "", "Best"]),
        ("2.0 NaN 1.5", ["base", "", "Best"]),
        ("NaN 1.5 NaN 1.4", ["base", "Best", "", "Best"]),
        ("2.0 -Infinity Infinity 9.0", ["base", "", "", "Best"]),
    ],
)
async def test_best_is_a_strictly_lower_finite_loss_of_a_trained_model(
    told: Show, losses: str, marks: list[str]
) -> None:
    points = [an_evaluation(10 * at, loss) for at, loss in enumerate(losses.split())]

    lines = [line for line in await told(evaluations=points) if "validation loss" in line]

    words = {"model)": "base", "Best": "Best"}
    assert [words.get(line.split()[-1], "") for line in lines] == marks


async def test_a_loss_is_told_with_its_step_and_a_bad_one_as_it_is(told: Show) -> None:
    points = [an_evaluation(10, "1.23456789"), an_evaluation(20, "NaN")]

    lines = await told(evaluations=points)

    assert lines[1:3] == [
        "step    10  validation loss 1.235  Best",
        "step    20  validation loss nan",
    ]


async def test_evaluations_are_told_once_over_many_looks(told: Show) -> None:
    lines = await told(
        looks=[*[a_job(RUNNING)] * 9, a_job(SUCCEEDED)], evaluations=[an_evaluation(10, "1.0")]
    )

    assert len([line for line in lines if "validation loss" in line]) == 1


async def test_a_checkpoint_is_told_once_and_again_only_when_it_is_final(told: Show) -> None:
    saved = [
        [a_checkpoint(10)],
        [a_checkpoint(10), a_checkpoint(20, is_best=True)],
        [a_checkpoint(20, is_best=True, is_final=True)],
    ]

    lines = await told(looks=[*[a_job(RUNNING)] * 9, a_job(SUCCEEDED)], saved=saved)

    assert [line for line in lines if "checkpoint" in line] == [
        "step    10  checkpoint committed, 2.0 KiB",
        "step    20  checkpoint committed, 2.0 KiB Best",
        "step    20  checkpoint is final",
    ]


async def test_a_checkpoint_of_the_last_moment_is_told_too(told: Show) -> None:
    lines = await told(looks=[a_job(SUCCEEDED)], saved=[[], [a_checkpoint(30, is_final=True)]])

    assert lines == ["succeeded", "step    30  checkpoint committed, 2.0 KiB final"]


async def test_an_outage_is_told_once_and_waited_out(told: Show) -> None:
    away = Unavailable("away")

    lines = await told(looks=[a_job(RUNNING), away, away, away, a_job(SUCCEEDED)])

    assert lines == ["training", "the platform does not answer, waiting", "succeeded"]


async def test_a_part_that_is_away_hides_nothing_of_the_others(told: Show) -> None:
    away = Unavailable("away")

    lines = await told(evaluations=away, saved=[away], price=away)

    assert lines == ["training", "succeeded"]


async def test_a_job_that_services_do_not_know_yet_is_followed(told: Show) -> None:
    unknown = NotFound("not yet", reason="JOB_NOT_FOUND")

    lines = await told(evaluations=unknown, saved=[unknown], price=unknown)

    assert lines == ["training", "succeeded"]


@pytest.mark.parametrize(
    "error", [NotFound("no job", reason="JOB_NOT_FOUND"), PermissionDenied("not yours")]
)
async def test_a_job_that_is_not_there_is_not_waited_for(told: Show, error: PlatformError) -> None:
    with pytest.raises(type(error)):
        await told(looks=[error])


async def test_the_numbers_beside_the_bar_are_the_newest() -> None:
    job = a_job(SUCCEEDED)
    job.progress.step = job.progress.total_steps = 10
    job.progress.values.update(loss="NaN", learning_rate="0.0002", tokens_per_second="123.4")
    price = billing_pb2.Cost(total=Money(currency_code="EUR", micros=1_500_000))
    fake: Any = Fake(looks=[a_job(RUNNING), job], price=price)
    out = io.StringIO()

    # A bar is drawn on a terminal alone.
    screen = Console(file=out, width=200, force_terminal=True, no_color=True)
    await follow(fake, "job_1", out=screen, look_seconds=0.0)

    assert "10/10 loss nan \xb7 lr 0.0002 \xb7 123 tok/s \xb7 1.50 EUR" in out.getvalue()
