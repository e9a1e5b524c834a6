"""The rows that the requirements say to train on, through the whole platform."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lehr.api.catalog.v1 import catalog_pb2
from lehr.api.scheduler.v1 import job_pb2
from tests.e2e.world import World, eventually
from tests.support import required_rows as required
from tests.support.toy_model import MARKED_TEMPLATE, PLAIN_TEMPLATE, write_toy_model

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

PATIENT = 300.0
PARIS = [*"Paris.", "</s>"]


async def stocked(world: World, folder: Path, name: str, *lines: str, template: str) -> None:
    """Put a toy model and a dataset of one name into the catalog."""
    model = write_toy_model(folder / f"model-{name}", template=template)
    await world.client.models.add(model, name=name, license="MIT")
    answer = await world.client.datasets.upload(
        required.write_lines(folder / f"{name}.jsonl", *lines), name=name
    )
    assert answer.is_accepted, answer.dataset.problems


def a_spec(name: str, *, steps: int, **data: Any) -> dict[str, Any]:
    """Return a job on all rows of a dataset."""
    return {
        "name": name,
        "model": name,
        "dataset": name,
        "training": {"max_steps": steps},
        "data": {"validation_split": 0.0, **data},
    }


async def trained(world: World, spec: dict[str, Any]) -> str:
    """Train to the end; return the job's log once it is there."""
    job_id = await world.launch_real(spec)
    job = await world.rests(job_id, within=PATIENT)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, f"{job.end_reason}: {job.state_message}"
    losses = await world.has_steps(job_id, spec["training"]["max_steps"])
    assert all(math.isfinite(float(loss)) and float(loss) > 0 for loss in losses.values())

    async def logged() -> str | None:
        log = await world.log(job_id)
        return log if "steps are done" in log else None

    log: str = await eventually(logged)
    await world.settled(job_id)
    await world.proves_clean()
    return log


def answer_of(sample: catalog_pb2.SamplePreview) -> list[str]:
    """Return the tokens that are trained."""
    pairs = zip(sample.tokens, sample.trained, strict=True)
    return [token for token, is_trained in pairs if is_trained]


async def test_truncation_keeps_the_end_of_each_row_and_the_log_says_how_many_it_met(
    world: World, tmp_path: Path
) -> None:
    lines = (required.TR_01_A, required.TR_01_B, required.TR_01_C)
    await stocked(world, tmp_path, "tr-01", required.TR_01_A, template=PLAIN_TEMPLATE)
    await stocked(world, tmp_path, "tr-01-abc", *lines, template=PLAIN_TEMPLATE)

    [whole] = await world.client.datasets.preview("tr-01", model="tr-01")
    first, second, third = await world.client.datasets.preview(
        "tr-01-abc", model="tr-01-abc", max_length=64
    )
    log = await trained(world, a_spec("tr-01", steps=2, max_length=64))
    log_of_all = await trained(world, a_spec("tr-01-abc", steps=1, max_length=64))

    assert (whole.token_count, answer_of(whole)) == (311, PARIS)
    assert (first.outcome, list(first.token_ids)) == ("truncated", list(whole.token_ids)[-64:])
    assert answer_of(first) == PARIS
    assert (second.token_count, len(second.token_ids), second.trained_count) == (110, 64, 64)
    assert second.tokens[-1] == "</s>"
    assert third.outcome == "untrainable"
    assert "training: 1 of 1 rows are used; 7 of 64 tokens are trained" in log
    assert "1 sample is longer than 64 tokens, cut to the last 64; the longest has 311" in log
    assert "training: 2 of 3 rows are used; 71 of 128 tokens are trained" in log_of_all
    assert "training: 1 sample is without a token to train, left out" in log_of_all


async def test_the_preview_and_the_log_say_7_of_311_whether_or_not_answers_are_marked(
    world: World, tmp_path: Path
) -> None:
    templates = {"tr-03-plain": PLAIN_TEMPLATE, "tr-03-marked": MARKED_TEMPLATE}
    samples: list[catalog_pb2.SamplePreview] = []
    logs: list[str] = []
    for name, template in templates.items():
        await stocked(world, tmp_path, name, *required.TR_03, template=template)
        samples += await world.client.datasets.preview(name, model=name, max_length=512)
        plan = await world.client.jobs.plan(a_spec(name, steps=2, max_length=512))
        assert (plan.data.trained_token_count, plan.data.token_count) == (7, 311)
        logs.append(await trained(world, a_spec(name, steps=2, max_length=512)))

    assert samples[0] == samples[1]
    assert (samples[0].token_count, samples[0].trained_count) == (311, 7)
    assert answer_of(samples[0]) == PARIS
    assert all("7 of 311 tokens are trained" in log for log in logs)


async def test_nested_objects_keep_exactly_their_own_keys_from_upload_to_training(
    world: World, tmp_path: Path
) -> None:
    await stocked(world, tmp_path, "ds-01", *required.DS_01, template=required.TOOL_TEMPLATE)

    samples = await world.client.datasets.preview("ds-01", model="ds-01", lines=[1, 2, 3, 4])
    await world.client.datasets.download("ds-01", tmp_path / "back")
    log = await trained(world, a_spec("ds-01", steps=1))

    assert (await world.client.datasets.inspect("ds-01")).dataset.row_count == 4
    first, second, third, fourth = (one.text for one in samples)
    assert 'weather{"city": "Oslo"}</s>' in first
    assert "time" not in first
    assert "note" not in first
    assert 'book{"time": "2025-08-01"}</s>' in second
    assert 'book_epoch{"time": 1754006400, "note": null}</s>' in third
    assert fourth == "<s><|user|>Hello</s><|assistant|>Hi there</s>"
    # Keys in the order of their author, in the list of tools too.
    uploaded = [json.loads(line) for line in required.DS_01[:3]]
    shown = [one.split("tools: ")[1].split("</s>")[0] for one in (first, second, third)]
    assert shown == [json.dumps(row["tools"]) for row in uploaded]
    sent = (tmp_path / "ds-01.jsonl").read_bytes()
    assert (tmp_path / "back" / "ds-01.jsonl").read_bytes() == sent
    assert "training: 4 of 4 rows are used" in log


async def test_a_nul_is_trained_and_half_a_pair_is_named_and_all_news_of_the_job_arrive(
    world: World, tmp_path: Path
) -> None:
    whole = required.write_lines(tmp_path / "nul.jsonl", *required.DS_11)
    refused = await world.client.datasets.upload(whole, name="ds-11")
    found = {one.reason: list(one.lines) for one in refused.dataset.problems}
    await stocked(world, tmp_path, "ds-11", *required.DS_11_ACCEPTED, template=PLAIN_TEMPLATE)

    samples = await world.client.datasets.preview("ds-11", model="ds-11", lines=[1, 2, 3])
    await world.client.datasets.download("ds-11", tmp_path / "back")
    log = await trained(world, a_spec("ds-11", steps=1))

    assert not refused.is_accepted
    assert found == {"ROW_INVALID": [3], "CONTROL_CHARACTERS": [2]}
    assert [one.text.split("<|assistant|>")[1] for one in samples] == [
        "fine</s>",
        "a\0b</s>",
        "x\N{GRINNING FACE}y</s>",
    ]
    sent = (tmp_path / "ds-11.jsonl").read_bytes()
    assert (tmp_path / "back" / "ds-11.jsonl").read_bytes() == sent
    accepted = (await world.client.datasets.inspect("ds-11")).dataset
    assert {one.reason: list(one.lines) for one in accepted.problems} == {"CONTROL_CHARACTERS": [2]}
    assert "training: 3 of 3 rows are used" in log
    [job] = (await world.client.jobs.page(name_contains="ds-11")).jobs
    assert await told(world, job) == ["queued", "starting", "running", "finished"]


async def told(world: World, job: job_pb2.Job) -> Sequence[str]:
    """Return the states that events tell of a job, up to its end."""
    found: list[str] = []
    since = job.create_time.ToDatetime()
    async for event in world.client.events.tail(
        types=["lehr.job."], job_id=job.job_id, since=since
    ):
        found.append(event["type"].removeprefix("lehr.job.").removesuffix(".v1"))
        if found[-1] == "finished":
            break
    return found
