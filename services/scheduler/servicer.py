"""gRPC in: a request becomes a command, the answer of its handler becomes a response."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from lehr.api.scheduler.v1 import scheduler_pb2 as pb
from lehr.api.scheduler.v1 import scheduler_pb2_grpc
from lehr.rpc.auth import caller, tenant_of_caller
from lehr.training.proto import spec_from_proto
from services.scheduler import messages, requests
from services.scheduler.changes import Changes
from services.scheduler.domain.commands import Owner, StopJob
from services.scheduler.handlers import jobs, plans, runs, views
from services.scheduler.ports import Ports
from services.scheduler.storage.jobs import changed_since
from services.scheduler.watching import Watches

SERVICE_NAME = "lehr.api.scheduler.v1.SchedulerService"
GATEWAY = "gateway"

POLICY: Mapping[str, frozenset[str]] = {
    "GetJob": frozenset({GATEWAY, "checkpoint_store"}),
    "GetRunPlan": frozenset({"trainer_runner"}),
    "ListJobsChangedSince": frozenset({"billing", "checkpoint_store"}),
}

CHANGES, CHANGES_MAX = 200, 1000

Context = Any  # grpc.aio.ServicerContext, which is generic in its stubs alone.


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Serves SchedulerService."""

    def __init__(self, ports: Ports, changes: Changes) -> None:
        self._ports = ports
        self._watches = Watches(changes, partial(views.job_view, project=None, ports=ports))

    async def PlanJob(self, request: pb.PlanJobRequest, context: Context) -> pb.PlanJobResponse:
        """Say what a job would do."""
        spec = spec_from_proto(request.spec)
        plan = await plans.plan_job(spec, _owner(), ports=self._ports)
        return pb.PlanJobResponse(plan=messages.plan_to_proto(plan))

    async def CreateJob(
        self, request: pb.CreateJobRequest, context: Context
    ) -> pb.CreateJobResponse:
        """Launch a job."""
        command = requests.create_job(request, _owner())
        created = await jobs.create_job(command, ports=self._ports)
        if command.dry_run and not created.is_replay:
            view = views.view_of_new(created.job, ports=self._ports)
        else:
            view = await self._view(created.job.job_id)
        return pb.CreateJobResponse(job=messages.job_to_proto(view), is_replay=created.is_replay)

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobResponse:
        """Answer one job."""
        view = await self._view(requests.job_id_of(request.job_id))
        return pb.GetJobResponse(job=messages.job_to_proto(view))

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        """Answer a page of jobs."""
        size = requests.page_size(request.page)
        chosen = requests.filter_of(request, _owner())
        # One more than the page tells whether there is another.
        found = await views.jobs_listed(chosen, limit=size + 1, ports=self._ports)
        token = ""
        if len(found) > size:
            last = found[size - 1].job
            token = requests.page_token(last.create_time, last.job_id)
        return pb.ListJobsResponse(
            jobs=[messages.job_to_proto(view) for view in found[:size]], next_page_token=token
        )

    async def WatchJob(
        self, request: pb.WatchJobRequest, context: Context
    ) -> AsyncIterator[pb.WatchJobResponse]:
        """Answer a job at each change."""
        watched = self._watches.job(
            tenant_of_caller(),
            requests.job_id_of(request.job_id),
            project=_project(),
            after_version=request.after_version,
        )
        async for view in watched:
            yield pb.WatchJobResponse(job=messages.job_to_proto(view))

    async def StopJob(self, request: pb.StopJobRequest, context: Context) -> pb.StopJobResponse:
        """Stop a job."""
        command = StopJob(owner=_owner(), job_id=requests.job_id_of(request.job_id))
        job = await jobs.stop_job(command, ports=self._ports)
        return pb.StopJobResponse(job=messages.job_to_proto(await self._view(job.job_id)))

    async def ResumeJob(
        self, request: pb.ResumeJobRequest, context: Context
    ) -> pb.ResumeJobResponse:
        """Resume a job."""
        command = requests.resume_job(request, _owner())
        job = await jobs.resume_job(command, ports=self._ports)
        return pb.ResumeJobResponse(job=messages.job_to_proto(await self._view(job.job_id)))

    async def GetRunPlan(
        self, request: pb.GetRunPlanRequest, context: Context
    ) -> pb.GetRunPlanResponse:
        """Give an agent what its trainer needs."""
        plan = await runs.run_plan(
            tenant_of_caller(), request.lease_id, request.epoch, ports=self._ports
        )
        return messages.run_plan_to_proto(plan)

    async def ListJobsChangedSince(
        self, request: pb.ListJobsChangedSinceRequest, context: Context
    ) -> pb.ListJobsChangedSinceResponse:
        """Let another service catch up, over all tenants."""
        limit = min(request.limit or CHANGES, CHANGES_MAX)
        after = requests.change_cursor(request.cursor)
        async with self._ports.db.connection() as conn:
            found = await changed_since(conn, after=after, limit=limit)
        cursor = f"{found[-1].xid}:{found[-1].job_id}" if found else request.cursor
        return pb.ListJobsChangedSinceResponse(
            changes=[messages.change_to_proto(one) for one in found], next_cursor=cursor
        )

    async def _view(self, job_id: str) -> views.JobView:
        return await views.job_view(
            tenant_of_caller(), job_id, project=_project(), ports=self._ports
        )


def _owner() -> Owner:
    found = caller()
    return Owner(tenant=tenant_of_caller(), project=found.project, principal=found.principal)


def _project() -> str | None:
    """Return the project that a user is bound to; a service sees all of its tenant's."""
    found = caller()
    return found.project if found.service == GATEWAY else None
