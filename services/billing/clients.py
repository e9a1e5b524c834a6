"""gRPC out: what billing asks the allocator and the scheduler."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import grpc.aio

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as allocator_pb
from lehr.api.gpu_allocator.v1.gpu_allocator_pb2_grpc import GpuAllocatorServiceStub
from lehr.api.scheduler.v1 import job_pb2, scheduler_pb2
from lehr.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from lehr.logs import get_logger
from lehr.rpc.auth import acting_for
from lehr.rpc.client import raises_platform_errors
from services.billing.domain.holds import Rest
from services.billing.domain.lease import Lease, LeasePhase
from services.billing.ports import JobChange

PAGE = 200

_PHASES = {allocator_pb.LeasePhase.Value(f"LEASE_PHASE_{phase}"): phase for phase in LeasePhase}
_RESTING = frozenset(
    {job_pb2.JOB_STATE_STOPPED, job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED}
)


class AllocatorClient:
    """The allocator over gRPC; implements ports.Leases."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = GpuAllocatorServiceStub(channel)

    async def of_job(
        self, tenant: str, job_id: str, *, within_seconds: float | None = None
    ) -> list[Lease]:
        """Return all leases of a job as they are now."""
        request = allocator_pb.ListLeaseIntervalsRequest(job_id=job_id, limit=PAGE)
        pages = self._pages(request, tenant=tenant, within_seconds=within_seconds)
        return [lease async for page in pages for lease in page]

    def of_tenant(self, tenant: str) -> AsyncIterator[list[Lease]]:
        """Return all leases of a tenant as they are now, page by page."""
        return self._pages(allocator_pb.ListLeaseIntervalsRequest(limit=PAGE), tenant=tenant)

    def still_open(self) -> AsyncIterator[list[Lease]]:
        """Return every lease of the installation that is not closed, page by page."""
        request = allocator_pb.ListLeaseIntervalsRequest(limit=PAGE, open_only=True)
        return self._pages(request, tenant="")

    async def changed_since(self, cursor: str) -> tuple[list[Lease], str]:
        """Return the next changes and the cursor behind them; no leases when there are no more."""
        request = allocator_pb.ListLeaseIntervalsRequest(cursor=cursor, limit=PAGE)
        with acting_for(""), raises_platform_errors():
            page = await self._stub.ListLeaseIntervals(request)
        return _leases(page), page.next_cursor or cursor

    async def _pages(
        self,
        request: allocator_pb.ListLeaseIntervalsRequest,
        *,
        tenant: str,
        within_seconds: float | None = None,
    ) -> AsyncIterator[list[Lease]]:
        while True:
            with acting_for(tenant), raises_platform_errors():
                page = await self._stub.ListLeaseIntervals(request, timeout=within_seconds)
            if page.leases:
                yield _leases(page)
            if not page.leases or page.next_cursor in {"", request.cursor}:
                return
            request.cursor = page.next_cursor


class SchedulerClient:
    """The scheduler over gRPC; implements ports.Jobs."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = SchedulerServiceStub(channel)

    async def changed_since(self, cursor: str) -> tuple[list[JobChange], str]:
        """Return the next changes and the cursor behind them; no changes when there are no more."""
        request = scheduler_pb2.ListJobsChangedSinceRequest(cursor=cursor, limit=PAGE)
        with acting_for(""), raises_platform_errors():
            page = await self._stub.ListJobsChangedSince(request)
        changes = [
            JobChange(
                tenant=change.tenant,
                job_id=change.job_id,
                rest=Rest(
                    version=change.version,
                    is_resting=change.state in _RESTING,
                    change_time=change.update_time.ToDatetime(tzinfo=UTC),
                ),
            )
            for change in page.changes
        ]
        return changes, page.next_cursor or cursor


def _leases(page: allocator_pb.ListLeaseIntervalsResponse) -> list[Lease]:
    known = [_lease(one) for one in page.leases if one.phase in _PHASES]
    if len(known) < len(page.leases):
        # A newer allocator may have phases that this code does not know.
        get_logger().error("lease_phase_unknown", lease_count=len(page.leases) - len(known))
    return known


def _lease(one: allocator_pb.Lease) -> Lease:
    return Lease(
        lease_id=one.lease_id,
        tenant=one.tenant,
        project=one.project,
        job_id=one.job_id,
        attempt=one.attempt,
        epoch=one.epoch,
        tier=one.tier,
        gpu_count=one.gpu_count,
        phase=_PHASES[one.phase],
        close_reason=one.close_reason,
        version=one.version,
        grant_time=one.grant_time.ToDatetime(tzinfo=UTC),
        running_time=_time(one, "running_time"),
        end_time=_time(one, "end_time"),
        alive_time=_time(one, "alive_time"),
        stop_time=_time(one, "stop_time"),
        funded_until=_time(one, "funded_until"),
        committed_time=_time(one, "committed_time"),
    )


def _time(message: Any, field: str) -> datetime | None:
    if not message.HasField(field):
        return None
    time: datetime = getattr(message, field).ToDatetime(tzinfo=UTC)
    return time
