"""gRPC out: what the store asks the scheduler."""

import grpc.aio

from lehr.api.scheduler.v1 import job_pb2, scheduler_pb2
from lehr.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from lehr.rpc.auth import acting_for
from lehr.rpc.client import raises_platform_errors

_OVER = frozenset(
    {job_pb2.JOB_STATE_STOPPED, job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED}
)
_PAGE = 200


class SchedulerClient:
    """The scheduler over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = SchedulerServiceStub(channel)

    async def is_over(self, tenant: str, project: str, job_id: str) -> bool:
        """Return whether the job rests or has ended."""
        request = scheduler_pb2.GetJobRequest(job_id=job_id)
        with acting_for(tenant, project), raises_platform_errors():
            response = await self._stub.GetJob(request)
        return response.job.state in _OVER

    async def finished_since(self, cursor: str) -> tuple[list[tuple[str, str]], str, bool]:
        """Return (tenant, job id) of finished jobs, the next cursor, and whether there is more."""
        request = scheduler_pb2.ListJobsChangedSinceRequest(cursor=cursor, limit=_PAGE)
        with acting_for(""), raises_platform_errors():
            response = await self._stub.ListJobsChangedSince(request)
        finished = [
            (change.tenant, change.job_id) for change in response.changes if change.state in _OVER
        ]
        has_more = len(response.changes) == _PAGE and response.next_cursor != cursor
        return finished, response.next_cursor or cursor, has_more
