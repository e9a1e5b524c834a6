"""Jobs: plan, launch, follow, stop, resume."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from google.protobuf.duration_pb2 import Duration

from lehr.api.billing.v1 import billing_pb2, billing_pb2_grpc
from lehr.api.common.v1.common_pb2 import Money as MoneyMessage
from lehr.api.common.v1.common_pb2 import Page
from lehr.api.scheduler.v1 import job_pb2, scheduler_pb2, scheduler_pb2_grpc
from lehr.api.telemetry.v1 import telemetry_pb2, telemetry_pb2_grpc
from lehr.client.connection import LONG_CALL_SECONDS, Connection
from lehr.ids import event_uuid
from lehr.money import Money
from lehr.training.proto import parse_spec, spec_to_proto
from lehr.training.spec import JobSpec
from lehr.training.yaml import read_spec

#: States in which a job rests or has ended.
RESTING = frozenset(
    {job_pb2.JOB_STATE_STOPPED, job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED}
)

Spec = JobSpec | Mapping[str, Any] | Path
"""A job: a JobSpec, its fields as plain values, or the path of its YAML file."""


class Jobs:
    """Fine-tuning jobs of the key's project."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._scheduler = scheduler_pb2_grpc.SchedulerServiceStub(connection.channel)
        self._telemetry = telemetry_pb2_grpc.TelemetryServiceStub(connection.channel)
        self._billing = billing_pb2_grpc.BillingServiceStub(connection.channel)

    async def plan(self, spec: Spec) -> job_pb2.Plan:
        """Check everything and return what would happen; nothing is spent.

        Raises:
            InvalidArgument: with every wrong field.
        """
        request = scheduler_pb2.PlanJobRequest(spec=_message(spec))
        answer = await self._connection.call(
            self._scheduler.PlanJob, request, seconds=LONG_CALL_SECONDS
        )
        return answer.plan

    async def create(
        self,
        what: Spec | str,
        *,
        max_cost: Money,
        max_duration: timedelta,
        request_id: str | None = None,
        dry_run: bool = False,
    ) -> job_pb2.Job:
        """Launch a plan (by its digest) or a spec, and return the job.

        ``max_cost`` and ``max_duration`` are what may be spent. The same ``request_id`` with the
        same request gives the same job; without one, a new key is made for this call.
        """
        request = scheduler_pb2.CreateJobRequest(
            authorization=authorization(max_cost, max_duration),
            request_id=request_id or event_uuid().hex,
            dry_run=dry_run,
        )
        if isinstance(what, str):
            request.plan_digest = what
        else:
            request.spec.CopyFrom(_message(what))
        answer = await self._connection.call(
            self._scheduler.CreateJob, request, seconds=LONG_CALL_SECONDS
        )
        return answer.job

    async def get(self, job_id: str) -> job_pb2.Job:
        """Return a job."""
        request = scheduler_pb2.GetJobRequest(job_id=job_id)
        return (await self._connection.call(self._scheduler.GetJob, request)).job

    async def page(
        self,
        *,
        states: Sequence[job_pb2.JobState.ValueType] = (),
        name_contains: str = "",
        page_size: int = 50,
        page_token: str = "",
    ) -> scheduler_pb2.ListJobsResponse:
        """Return a page of jobs, newest first."""
        request = scheduler_pb2.ListJobsRequest(
            page=Page(page_size=page_size, page_token=page_token),
            states=states,
            name_contains=name_contains,
        )
        return await self._connection.call(self._scheduler.ListJobs, request)

    async def watch(self, job_id: str, *, after_version: int = 0) -> AsyncIterator[job_pb2.Job]:
        """Yield the job now and at each change, until it rests or ends."""
        request = scheduler_pb2.WatchJobRequest(job_id=job_id, after_version=after_version)
        async for answer in self._connection.stream(self._scheduler.WatchJob, request):
            yield answer.job

    async def wait(self, job_id: str) -> job_pb2.Job:
        """Return the job once it rests or has ended, however long that takes."""
        job = await self.get(job_id)
        while job.state not in RESTING:
            async for _ in self.watch(job_id):
                pass
            job = await self.get(job_id)
        return job

    async def stop(self, job_id: str) -> job_pb2.Job:
        """Stop a job; what is billed is fixed when this returns."""
        request = scheduler_pb2.StopJobRequest(job_id=job_id)
        return (await self._connection.call(self._scheduler.StopJob, request)).job

    async def resume(
        self,
        job_id: str,
        *,
        max_cost: Money | None = None,
        max_duration: timedelta | None = None,
        request_id: str | None = None,
    ) -> job_pb2.Job:
        """Take a stopped or failed job back to the queue; without limits, with what is left.

        Raises:
            FailedPrecondition: NOTHING_TO_RESUME, NO_CHECKPOINT_VERIFIES or JOB_STATE_FORBIDS.
        """
        request = scheduler_pb2.ResumeJobRequest(
            job_id=job_id, request_id=request_id or event_uuid().hex
        )
        if max_cost is not None and max_duration is not None:
            request.authorization.CopyFrom(authorization(max_cost, max_duration))
        answer = await self._connection.call(
            self._scheduler.ResumeJob, request, seconds=LONG_CALL_SECONDS
        )
        return answer.job

    async def cost(self, job_id: str) -> billing_pb2.Cost:
        """Return what the job has cost so far, line by line."""
        request = billing_pb2.GetCostRequest(job_id=job_id)
        return (await self._connection.call(self._billing.GetCost, request)).cost

    async def metrics(
        self,
        job_id: str,
        *,
        names: Sequence[str] = (),
        after_step: int = -1,
        include_superseded: bool = False,
    ) -> list[telemetry_pb2.Point]:
        """Return all points of the job's series, by step."""
        points: list[telemetry_pb2.Point] = []
        has_more = True
        while has_more:
            request = telemetry_pb2.QueryMetricsRequest(
                job_id=job_id,
                names=names,
                after_step=after_step,
                include_superseded=include_superseded,
            )
            answer = await self._connection.call(self._telemetry.QueryMetrics, request)
            points.extend(answer.points)
            has_more = answer.has_more and bool(answer.points)
            after_step = points[-1].step if points else after_step
        return points

    async def watch_metrics(
        self, job_id: str, *, names: Sequence[str] = (), after_step: int = -1
    ) -> AsyncIterator[telemetry_pb2.Point]:
        """Yield points as they come."""
        request = telemetry_pb2.WatchMetricsRequest(
            job_id=job_id, names=names, after_step=after_step
        )
        async for answer in self._connection.stream(self._telemetry.WatchMetrics, request):
            for point in answer.points:
                yield point

    async def logs(
        self, job_id: str, *, after_cursor: int = 0
    ) -> AsyncIterator[telemetry_pb2.LogLine]:
        """Yield the lines of the job's log so far."""
        has_more = True
        while has_more:
            request = telemetry_pb2.ReadLogsRequest(job_id=job_id, after_cursor=after_cursor)
            answer = await self._connection.call(self._telemetry.ReadLogs, request)
            for line in answer.lines:
                after_cursor = line.cursor
                yield line
            has_more = answer.has_more

    async def watch_logs(
        self, job_id: str, *, after_cursor: int = 0
    ) -> AsyncIterator[telemetry_pb2.LogLine]:
        """Yield the lines of the job's log, and new ones as they come."""
        request = telemetry_pb2.WatchLogsRequest(job_id=job_id, after_cursor=after_cursor)
        async for answer in self._connection.stream(self._telemetry.WatchLogs, request):
            for line in answer.lines:
                yield line


def authorization(max_cost: Money, max_duration: timedelta) -> job_pb2.Authorization:
    """Return what may be spent, as a message."""
    duration = Duration()
    duration.FromTimedelta(max_duration)
    return job_pb2.Authorization(
        max_cost=MoneyMessage(currency_code=max_cost.currency, micros=max_cost.micros),
        max_duration=duration,
    )


def _message(spec: Spec) -> job_pb2.JobSpec:
    if isinstance(spec, Path):
        return spec_to_proto(read_spec(spec))
    return spec_to_proto(spec if isinstance(spec, JobSpec) else parse_spec(spec))
