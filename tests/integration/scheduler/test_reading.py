"""What users and services see: lists, watches, and nothing of other tenants."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from lehr.api.common.v1.common_pb2 import Page
from lehr.api.scheduler.v1 import job_pb2, scheduler_pb2
from lehr.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from lehr.errors import InvalidArgument, NotFound, PermissionDenied
from lehr.rpc.auth import acting_for
from lehr.rpc.client import raises_platform_errors, stream_of
from tests.integration.scheduler.story import Story


async def listed(story: Story, **fields: Any) -> scheduler_pb2.ListJobsResponse:
    with raises_platform_errors():
        return await story.user.ListJobs(scheduler_pb2.ListJobsRequest(**fields))


async def test_pages_hold_each_job_once_though_new_ones_arrive(story: Story) -> None:
    made = [(await story.launch(name=f"job {n}")).job_id for n in range(5)]

    first = await listed(story, page=Page(page_size=2))
    await story.launch(name="newcomer")
    token = first.next_page_token
    second = await listed(story, page=Page(page_size=2, page_token=token))
    third = await listed(story, page=Page(page_size=2, page_token=second.next_page_token))

    found = [job.job_id for page in (first, second, third) for job in page.jobs]
    assert found == made[::-1]
    assert third.next_page_token == ""


async def test_lists_are_filtered_by_state_and_name(story: Story) -> None:
    story.peers.allocator.free["cpu"] = 0
    kept = await story.launch(name="Alpha one")
    await story.launch(name="beta")
    stopped = await story.launch(name="alpha two")
    await story.stop(stopped.job_id)

    by_name = await listed(story, name_contains="ALPHA")
    by_both = await listed(story, name_contains="alpha", states=[job_pb2.JOB_STATE_QUEUED])

    assert [job.job_id for job in by_name.jobs] == [stopped.job_id, kept.job_id]
    assert [job.job_id for job in by_both.jobs] == [kept.job_id]


@pytest.mark.parametrize(
    "fields",
    [
        {"page": Page(page_token="junk")},
        {"page": Page(page_token="W10=")},
        {"name_contains": "a\0"},
        {"page": Page(page_token=base64.urlsafe_b64encode(b"[" * 100_000).decode())},
        {"states": [job_pb2.JOB_STATE_UNSPECIFIED]},
        {"states": [job_pb2.JOB_STATE_QUEUED] * 500_000},
    ],
)
async def test_a_list_that_makes_no_sense_is_refused(story: Story, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        await listed(story, **fields)


async def test_a_watch_shows_every_state_and_ends_with_the_job(story: Story) -> None:
    story.peers.allocator.free["cpu"] = 0
    job = await story.launch()
    states: list[int] = []

    async def watch() -> None:
        request = scheduler_pb2.WatchJobRequest(job_id=job.job_id)
        async for answer in stream_of(story.user.WatchJob(request)):
            states.append(answer.job.state)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.3)
    story.peers.allocator.free["cpu"] = 1
    await story.comes_to(job.job_id, "STARTING")
    lease = story.peers.allocator.of_job(job.job_id)[0]
    story.peers.allocator.move(lease.lease_id, "RUNNING", running=True)
    await story.tell_lease(lease)
    await story.comes_to(job.job_id, "RUNNING")
    await story.close(lease, "COMPLETED")
    await asyncio.wait_for(watching, timeout=20)

    changes = [
        state for state, before in zip(states, [0, *states], strict=False) if state != before
    ]
    assert changes == [
        job_pb2.JOB_STATE_QUEUED,
        job_pb2.JOB_STATE_STARTING,
        job_pb2.JOB_STATE_RUNNING,
        job_pb2.JOB_STATE_SUCCEEDED,
    ]


async def test_a_watch_after_the_last_version_of_an_ended_job_ends_at_once(story: Story) -> None:
    story.peers.allocator.free["cpu"] = 0
    job = await story.stop((await story.launch()).job_id)

    request = scheduler_pb2.WatchJobRequest(job_id=job.job_id, after_version=job.version)
    answers = [answer async for answer in stream_of(story.user.WatchJob(request))]

    assert answers == []


async def test_other_services_catch_up_without_gap_or_repetition(story: Story) -> None:
    story.peers.allocator.free["cpu"] = 0
    made = [(await story.launch()).job_id for _ in range(3)]

    async with story.service.called_by("billing", tenant="") as channel:
        stub = SchedulerServiceStub(channel)
        request = scheduler_pb2.ListJobsChangedSinceRequest(limit=2)
        first = await stub.ListJobsChangedSince(request)
        request.cursor = first.next_cursor
        second = await stub.ListJobsChangedSince(request)
        with acting_for("acme"):
            await story.stop(made[0])
        request.cursor = second.next_cursor
        third = await stub.ListJobsChangedSince(request)
        request.cursor = third.next_cursor
        fourth = await stub.ListJobsChangedSince(request)

    assert [one.job_id for one in (*first.changes, *second.changes)] == made
    assert [(one.job_id, one.end_reason, one.tenant) for one in third.changes] == [
        (made[0], "USER_STOPPED", "acme")
    ]
    assert (list(fourth.changes), fourth.next_cursor) == ([], third.next_cursor)


async def test_a_change_whose_transaction_is_open_is_never_skipped(story: Story) -> None:
    story.peers.allocator.free["cpu"] = 0
    early, late = (await story.launch()).job_id, (await story.launch()).job_id

    async with story.service.called_by("billing", tenant="") as channel:
        stub = SchedulerServiceStub(channel)
        caught_up = await stub.ListJobsChangedSince(scheduler_pb2.ListJobsChangedSinceRequest())
        request = scheduler_pb2.ListJobsChangedSinceRequest(cursor=caught_up.next_cursor)
        async with story.admin.transaction() as conn:
            await conn.execute(
                "UPDATE scheduler.jobs SET state = 'STARTING', version = version + 1,"
                " change_xid = pg_current_xact_id() WHERE job_id = $1",
                early,
            )
            with acting_for("acme"):
                await story.stop(late)
            during = await stub.ListJobsChangedSince(request)
        after = await stub.ListJobsChangedSince(request)

    assert list(during.changes) == []
    assert [one.job_id for one in after.changes] == [early, late]


CALLS = [
    ("GetJob", lambda job: scheduler_pb2.GetJobRequest(job_id=job)),
    ("StopJob", lambda job: scheduler_pb2.StopJobRequest(job_id=job)),
    ("ResumeJob", lambda job: scheduler_pb2.ResumeJobRequest(job_id=job, request_id="x")),
]


@pytest.mark.parametrize(("method", "request_of"), CALLS)
@pytest.mark.parametrize("who", [{"tenant": "rival"}, {"project": "other"}])
async def test_a_foreign_job_answers_like_an_unknown_one(
    story: Story, method: str, request_of: Any, who: dict[str, str]
) -> None:
    story.peers.allocator.free["cpu"] = 0
    job = await story.launch()
    unknown = "job_" + "0" * 26
    told = []

    async with story.service.called_by("gateway", **who) as channel:
        call = getattr(SchedulerServiceStub(channel), method)
        for job_id in (job.job_id, unknown):
            with pytest.raises(NotFound) as error, raises_platform_errors():
                await call(request_of(job_id))
            told.append(error.value.message.replace(job_id, "X"))
        seen = await SchedulerServiceStub(channel).ListJobs(scheduler_pb2.ListJobsRequest())

    assert told[0] == told[1]
    assert list(seen.jobs) == []
    assert (await story.job(job.job_id)).version == job.version


async def test_a_foreign_job_cannot_be_watched(story: Story) -> None:
    job = await story.launch()

    async with story.service.called_by("gateway", tenant="rival") as channel:
        stub = SchedulerServiceStub(channel)
        with pytest.raises(NotFound):
            async for _ in stream_of(
                stub.WatchJob(scheduler_pb2.WatchJobRequest(job_id=job.job_id))
            ):
                pass


async def test_the_plan_of_a_foreign_lease_is_not_given(story: Story) -> None:
    _, lease = await story.started()

    async with story.service.called_by("trainer_runner", tenant="rival") as channel:
        stub = SchedulerServiceStub(channel)
        with pytest.raises(Exception, match="no run is recorded"), raises_platform_errors():
            await stub.GetRunPlan(
                scheduler_pb2.GetRunPlanRequest(lease_id=lease.lease_id, epoch=lease.epoch)
            )


@pytest.mark.parametrize(
    ("by", "method", "request_"),
    [
        ("gateway", "GetRunPlan", scheduler_pb2.GetRunPlanRequest(lease_id="x", epoch=1)),
        ("gateway", "ListJobsChangedSince", scheduler_pb2.ListJobsChangedSinceRequest()),
        ("billing", "CreateJob", scheduler_pb2.CreateJobRequest()),
        ("trainer_runner", "StopJob", scheduler_pb2.StopJobRequest(job_id="job_" + "0" * 26)),
    ],
)
async def test_each_method_is_for_those_whom_it_is_for(
    story: Story, by: str, method: str, request_: Any
) -> None:
    async with story.service.called_by(by) as channel:
        with pytest.raises(PermissionDenied), raises_platform_errors():
            await getattr(SchedulerServiceStub(channel), method)(request_)
