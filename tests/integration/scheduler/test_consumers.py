"""Events in: once, twice, out of order, and poison."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from nats.js.api import DeliverPolicy

from lehr.api.scheduler.v1 import job_pb2
from lehr.events import codec
from lehr.events.run import RunEvaluated, RunProgressed, StepPoint
from lehr.ids import event_uuid, new_id
from tests.integration.scheduler.story import Story, until
from tests.support.fakes_scheduler import Phase

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def steps(job: job_pb2.Job, sequence: int, step: int, **fields: Any) -> RunProgressed:
    run = job.runs[-1]
    values = {
        "tenant": "acme",
        "run_id": run.run_id,
        "job_id": job.job_id,
        "epoch": run.epoch,
        "first_sequence": sequence,
        "last_sequence": sequence,
        "points": (StepPoint(step=step, time=NOW, values={"loss": 1 / step}),),
        "total_steps": 100,
        "remaining_seconds": 9.5,
    }
    return RunProgressed(**values | fields)


def evaluation(
    job: job_pb2.Job, sequence: int, step: int, loss: float, **fields: Any
) -> RunEvaluated:
    run = job.runs[-1]
    values = {
        "tenant": "acme",
        "run_id": run.run_id,
        "job_id": job.job_id,
        "epoch": run.epoch,
        "report_sequence": sequence,
        "step": step,
        "time": NOW,
        "eval_loss": loss,
    }
    return RunEvaluated(**values | fields)


async def test_a_lease_event_delivered_twice_counts_once(story: Story) -> None:
    job, lease = await story.started()
    story.peers.allocator.move(lease.lease_id, "RUNNING", running=True)
    event_id = str(event_uuid())

    for _ in range(4):
        await story.tell_lease(lease, event_id=event_id)
    await story.comes_to(job.job_id, "RUNNING")
    await story.drained("scheduler-lease", stream="LEASES")

    assert await story.facts(job.job_id) == [("queued", 1), ("starting", 2), ("running", 3)]
    async with story.admin.connection() as conn:
        seen = await conn.fetchval(
            "SELECT count(*) FROM scheduler.inbox WHERE event_id = $1", event_id
        )
    assert seen == 1


async def test_lease_events_out_of_order_end_the_job_once(story: Story) -> None:
    job, lease = await story.started()
    story.peers.allocator.move(lease.lease_id, "RUNNING", running=True)
    running = type(lease).FromString(lease.SerializeToString())

    await story.close(lease, "COMPLETED")
    await story.tell_lease(running)
    await story.comes_to(job.job_id, "SUCCEEDED")
    await story.drained("scheduler-lease", stream="LEASES")

    assert await story.facts(job.job_id) == [("queued", 1), ("starting", 2), ("finished", 3)]
    assert (await story.job(job.job_id)).HasField("start_time")


async def test_a_lease_of_another_tenant_touches_nothing(story: Story) -> None:
    job, lease = await story.started()
    theirs = type(lease).FromString(lease.SerializeToString())
    theirs.tenant, theirs.version = "rival", 9
    theirs.phase, theirs.close_reason = Phase.LEASE_PHASE_CLOSED, "COMPLETED"

    await story.tell_lease(theirs)
    await story.drained("scheduler-lease", stream="LEASES")

    assert await story.job(job.job_id) == job


async def test_the_news_of_a_granted_lease_begins_the_run_if_the_answer_was_lost(
    story: Story,
) -> None:
    story.peers.allocator.free["cpu"] = 0
    job = await story.launch()
    await story.started(tier="l")
    lost = type(story.peers.allocator.asked[0])()
    lost.CopyFrom(story.peers.allocator.asked[0])
    lost.job_id, lost.attempt, lost.run_id = job.job_id, 1, new_id("run")
    story.peers.allocator._grant(new_id("lease"), lost, "l")

    await story.tell_lease(story.peers.allocator.of_job(job.job_id)[0])

    assert len((await story.comes_to(job.job_id, "STARTING")).runs) == 1


@pytest.mark.parametrize(
    "body", [b"{", b'{"specversion": "1.0"}', b"[]"], ids=["no json", "no event", "a list"]
)
async def test_poison_is_parked_and_the_next_event_is_handled(story: Story, body: bytes) -> None:
    js = story.bus.jetstream()
    parked = await js.subscribe(
        "dlq.scheduler-lease", ordered_consumer=True, deliver_policy=DeliverPolicy.NEW
    )
    job, lease = await story.started()

    await js.publish("evt.lease.phase.v1.acme.lease_x", body)
    story.peers.allocator.move(lease.lease_id, "RUNNING", running=True)
    await story.tell_lease(lease)

    await story.comes_to(job.job_id, "RUNNING")
    letter = await parked.next_msg(timeout=10)
    assert letter.data == body
    assert letter.headers is not None
    assert letter.headers["Lehr-Reason"] == "EVENT_MALFORMED"


async def test_an_unknown_phase_is_parked(story: Story) -> None:
    js = story.bus.jetstream()
    before = (await js.stream_info("DLQ")).state.messages
    _, lease = await story.started()
    await story.tell_lease(lease)
    body = (await js.get_last_msg("LEASES", "evt.lease.granted.>")).data
    assert body is not None

    await js.publish(
        "evt.lease.granted.v1.acme.lease_x",
        body.replace(b"GRANTED", b"MELTED").replace(codec.peek(body)["id"].encode(), b"id-x"),
    )

    async def parked() -> bool:
        return (await js.stream_info("DLQ")).state.messages == before + 1

    await until(parked)


async def test_progress_is_shown_and_old_reports_change_nothing(story: Story) -> None:
    job, _ = await story.running()

    await story.tell(steps(job, 5, 20))
    await story.tell(steps(job, 3, 10))
    await story.tell(steps(job, 5, 20))
    await story.tell(steps(job, 9, 99, epoch=job.runs[0].epoch - 1))
    await story.tell(steps(job, 9, 99, tenant="rival"))
    await story.drained("scheduler-run", stream="RUNS")
    shown = await story.job(job.job_id)

    assert (shown.progress.step, shown.progress.total_steps) == (20, 100)
    assert shown.progress.values == {"loss": "0.05"}
    assert shown.progress.remaining_seconds == 9.5
    assert shown.version == job.version


async def test_evaluations_keep_the_baseline_and_say_what_is_not_finite(story: Story) -> None:
    job, _ = await story.running()

    best = {"best_step": 10, "best_loss": 1.5}
    await story.tell(evaluation(job, 1, 0, 2.5))
    await story.tell(evaluation(job, 2, 10, 1.5, **best))
    await story.tell(evaluation(job, 3, 20, math.nan, **best))
    await story.drained("scheduler-run", stream="RUNS")
    progress = (await story.job(job.job_id)).progress

    assert (progress.baseline_loss, progress.eval_loss) == (2.5, "NaN")
    assert (progress.best_step, progress.best_loss) == (10, 1.5)


async def test_a_baseline_that_comes_late_is_still_noted(story: Story) -> None:
    job, _ = await story.running()

    await story.tell(evaluation(job, 2, 10, 1.5, best_step=10, best_loss=1.5))
    await story.tell(evaluation(job, 1, 0, 2.5))
    await story.drained("scheduler-run", stream="RUNS")
    progress = (await story.job(job.job_id)).progress

    assert (progress.baseline_loss, progress.eval_loss) == (2.5, "1.5")


async def test_a_report_of_a_run_that_was_replaced_changes_nothing(story: Story) -> None:
    story.peers.allocator.stock(cpu=2)
    job, lease = await story.running()
    await story.close(lease, "PLATFORM_FAULT")

    async def second_run() -> bool:
        return len((await story.job(job.job_id)).runs) == 2

    await until(second_run)
    await story.tell(steps(job, 50, 50))
    await story.drained("scheduler-run", stream="RUNS")

    assert (await story.job(job.job_id)).progress.step == 0


async def test_the_end_names_the_best_and_the_last_step(story: Story) -> None:
    job, lease = await story.running()
    await story.tell(steps(job, 1, 30))
    await story.tell(evaluation(job, 2, 30, 1.5, best_step=20, best_loss=1.25))
    await story.drained("scheduler-run", stream="RUNS")

    await story.close(lease, "EARLY_STOPPED")
    await story.comes_to(job.job_id, "SUCCEEDED")

    async with story.admin.connection() as conn:
        body = await conn.fetchval(
            "SELECT body FROM scheduler.outbox WHERE subject_id = $1"
            " ORDER BY outbox_id DESC LIMIT 1",
            job.job_id,
        )
    told = codec.peek(body.encode())["data"]
    assert (told["state"], told["end_reason"]) == ("SUCCEEDED", "EARLY_STOPPED")
    assert (told["best_step"], told["last_step"]) == (20, 30)
