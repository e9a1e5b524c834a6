"""ES-01, ES-03 and ES-05 of the requirements as a user sees them while the job runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

import pytest
from google.protobuf.json_format import MessageToJson

from lehr.api.scheduler.v1 import job_pb2
from lehr.client.jobs import RESTING
from tests.e2e.test_life_of_a_job import script
from tests.e2e.world import World, eventually

ES_01 = "10:2.00 20:1.20 30:1.50 40:1.60 50:1.70 60:1.80 70:1.90"
ES_03_A = "10:1.80 20:NaN 30:1.70 40:NaN 50:NaN 60:NaN"
ES_03_B = "10:NaN 20:NaN 30:NaN"
ES_03_C = "10:1.80 20:-Infinity 30:Infinity 40:1.90"
ES_05 = "10:2.00 20:2.10 30:2.20 40:1.90 50:2.00 60:2.05 70:1.80 80:1.85 90:1.90 100:1.95 110:1.00"
NONE_FINITE = "no finite validation loss was seen"


@dataclass(frozen=True, kw_only=True)
class Look:
    """What job page and list of checkpoints showed at one moment."""

    evaluated: int
    """Newest evaluation that was told before the checkpoints were listed; 0 for none."""
    best_step: int | None
    """Of the job page."""
    saved: dict[int, str]
    """Roles of the checkpoints by step."""

    @property
    def bests(self) -> list[int]:
        """Steps that are flagged Best."""
        return [step for step, roles in self.saved.items() if "best" in roles]

    @property
    def ordinary(self) -> list[int]:
        """Steps that are neither Best nor final."""
        return [step for step, roles in self.saved.items() if not roles]


async def looks(world: World, job_id: str) -> AsyncIterator[Look]:
    """Look again and again until the job rests, and once more."""
    while True:
        job = await world.client.jobs.get(job_id)
        evaluated = await world.steps(job_id, "eval_loss")
        progress = job.progress
        yield Look(
            evaluated=max(evaluated, default=0),
            best_step=progress.best_step if progress.HasField("best_step") else None,
            saved=await world.saved(job_id),
        )
        if job.state in RESTING:
            return
        await asyncio.sleep(0.05)


async def test_after_every_evaluation_best_is_listed_once_and_downloads_whole(
    world: World, tmp_path: Path
) -> None:
    slowly = {**script(ES_01), "step_seconds": 0.2}
    job_id = await world.launch(slowly, early_stopping={"patience": 5})
    seen: list[Look] = []
    downloads: dict[int, int] = {}

    async for look in looks(world, job_id):
        seen.append(look)
        if look.bests and look.evaluated not in downloads:
            downloads[look.evaluated] = await whole(world, job_id, tmp_path / str(len(seen)))
    job = await world.rests(job_id)
    at_end = await world.saved(job_id)
    last = await whole(world, job_id, tmp_path / "last")

    assert (job.state, job.end_reason) == (job_pb2.JOB_STATE_SUCCEEDED, "EARLY_STOPPED")
    assert job.progress.step == 70
    # No evaluation went by unseen.
    assert {look.evaluated for look in seen} >= set(range(10, 70, 10))
    assert set(downloads) >= set(range(20, 70, 10))
    with_20 = [look for look in seen if 20 in look.saved]
    assert {tuple(look.bests) for look in with_20} == {(20,)}
    # Once there it is in every listing, and it is there before the next evaluation but one.
    assert with_20 == seen[-len(with_20) :]
    assert with_20[0].evaluated <= 30
    assert max(len(look.ordinary) for look in seen) <= 2
    assert all(downloads[step] == 20 for step in range(40, 70, 10))
    assert last == 20
    assert (at_end[20], at_end[70], at_end[60]) == ("best", "final", "")
    assert set(at_end) in ({20, 60, 70}, {20, 50, 60, 70})
    assert "Best is step 20" in await ended(world, job_id)


async def whole(world: World, job_id: str, folder: Path) -> int:
    """Download Best with every file, which compares their SHA-256; return its step."""
    found = await world.client.checkpoints.download(
        f"{job_id}:best", folder, with_training_state=True
    )
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert sizes == {file.name: file.size_bytes for file in found.files}
    return found.step


async def ended(world: World, job_id: str) -> str:
    """Wait for the last words of a job's log and return the line."""

    async def look() -> str | None:
        lines = (await world.log(job_id)).splitlines()
        return next((line for line in lines if "Stopped early at step" in line), None)

    line: str = await eventually(look)
    return line


@pytest.mark.parametrize(
    ("series", "best", "end"),
    [(ES_03_A, 30, 60), (ES_03_B, None, 30), (ES_03_C, 10, 40)],
    ids=["A", "B", "C"],
)
async def test_a_loss_that_is_not_finite_is_no_improvement_and_is_valid_json_everywhere(
    world: World, tmp_path: Path, series: str, best: int | None, end: int
) -> None:
    job_id = await world.launch(script(series), early_stopping={"patience": 3})

    job = await world.rests(job_id)
    line = await ended(world, job_id)
    saved = await world.saved(job_id)
    evaluated = await world.steps(job_id, "eval_loss")

    assert (job.state, job.end_reason) == (job_pb2.JOB_STATE_SUCCEEDED, "EARLY_STOPPED")
    assert job.progress.step == end
    assert [step for step, roles in saved.items() if "best" in roles] == ([best] if best else [])
    assert "final" in saved[end]
    if best is None:
        assert not job.progress.HasField("best_step")
        assert not job.progress.HasField("best_loss")
        assert NONE_FINITE in job.state_message
        assert NONE_FINITE in line
    else:
        assert job.progress.best_step == best
        assert f"Best is step {best}" in line
        assert NONE_FINITE not in await world.log(job_id)
    told = dict(pair.split(":") for pair in series.split())
    assert {str(step): float(value) for step, value in evaluated.items() if step} == {
        step: pytest.approx(float(value), nan_ok=True) for step, value in told.items()
    }
    await is_strict_json(world, job, tmp_path)


async def is_strict_json(world: World, job: job_pb2.Job, folder: Path) -> None:
    """Read series, job, events and the series in the final checkpoint with a strict parser."""
    points = await world.client.jobs.metrics(job.job_id)
    assert {point.name for point in points} >= {"loss", "eval_loss"}
    texts = [MessageToJson(one) for one in (*points, job)]
    await world.client.checkpoints.download(f"{job.job_id}:final", folder, with_training_state=True)
    texts += [path.read_text() for path in folder.glob("*.json")]
    series = (folder / "series.jsonl").read_text().splitlines()
    assert any("NaN" in line or "Infinity" in line for line in series)
    for text in [*texts, *series]:
        json.loads(text, parse_constant=_refuse)
    since = job.create_time.ToDatetime()
    async for event in world.client.events.tail(job_id=job.job_id, since=since):
        json.dumps(event, allow_nan=False)
        if event["type"] == "lehr.job.finished.v1":
            break


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


async def test_best_is_shown_as_10_then_40_then_70_and_the_run_ends_at_100(world: World) -> None:
    slowly: dict[str, Any] = {**script(ES_05), "step_seconds": 0.1}
    job_id = await world.launch(slowly, early_stopping={"patience": 3})

    seen = [look async for look in looks(world, job_id)]
    job = await world.rests(job_id)
    cost = await world.settled(job_id)

    assert (job.state, job.end_reason) == (job_pb2.JOB_STATE_SUCCEEDED, "EARLY_STOPPED")
    assert (job.progress.step, job.progress.best_step) == (100, 70)
    shown = [step for step, _ in groupby(look.best_step for look in seen) if step is not None]
    listed = [bests for bests, _ in groupby(look.bests for look in seen) if bests]
    assert (shown, listed) == ([10, 40, 70], [[10], [40], [70]])
    assert "Best is step 70" in await ended(world, job_id)
    # Steps that are computed, told and billed end at 100.
    await world.has_steps(job_id, 100)
    assert max(await world.saved(job_id)) == 100
    ran = (job.finish_time.ToDatetime() - job.start_time.ToDatetime()).total_seconds()
    assert 100 * 0.1 - 1 <= cost.billed_seconds <= ran
    await world.proves_clean()
