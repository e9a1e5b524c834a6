"""What billing asks of others, written by hand: an allocator and a scheduler that a test fills.

They run in threads of their own, so that they outlive the loop of a test as real services would.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as allocator_pb
from lehr.api.scheduler.v1 import job_pb2, scheduler_pb2
from lehr.rpc.auth import TOKEN_KEY, Caller, Verifier
from services.billing.domain.lease import Lease
from tests.support.one_service import TRUSTED

_VERIFIER = Verifier(TRUSTED)


@dataclass
class Down:
    """A service that may be away."""

    is_down: bool = False

    def check(self, context: Any) -> Caller:
        """Refuse a call while away, and any that billing did not sign; return the caller."""
        if self.is_down:
            context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        metadata = dict(context.invocation_metadata())
        caller = _VERIFIER.verify(metadata.get(TOKEN_KEY))
        assert caller.service == "billing"
        return caller


@dataclass
class FakeAllocator(Down):
    """An allocator that lists the leases which a test gave it, in the order of their changes."""

    changes: list[Lease] = field(default_factory=list)
    tells_changes: bool = True
    """Else it answers only who asks for one tenant's, as if sweeps lagged behind."""

    def put(self, *leases: Lease) -> None:
        """Let leases be so from now on."""
        for lease in leases:
            kept = [one for one in self.changes if one.lease_id != lease.lease_id]
            # Gaps stay, as numbers of changes only grow.
            self.changes = kept
            self._numbers[lease.lease_id] = self.last_number = self.last_number + 1
            self.changes.append(lease)

    _numbers: dict[str, int] = field(default_factory=dict)
    last_number: int = 0
    """Number of the newest change."""

    def ListLeaseIntervals(
        self, request: allocator_pb.ListLeaseIntervalsRequest, context: Any
    ) -> allocator_pb.ListLeaseIntervalsResponse:
        tenant = self.check(context).tenant
        after = int(request.cursor or 0)
        found = [
            lease
            for lease in self.changes
            if self._numbers[lease.lease_id] > after
            and (self.tells_changes or tenant)
            and tenant in {"", lease.tenant}
            and request.job_id in {"", lease.job_id}
            and (lease.is_open or not request.open_only)
        ][: request.limit or 200]
        last = str(self._numbers[found[-1].lease_id]) if found else ""
        return allocator_pb.ListLeaseIntervalsResponse(
            leases=[_message(lease) for lease in found], next_cursor=last
        )


@dataclass
class FakeScheduler(Down):
    """A scheduler that lists the changes which a test gave it."""

    changes: list[scheduler_pb2.JobChange] = field(default_factory=list)

    def put(self, tenant: str, job_id: str, state: str, *, version: int, at: datetime) -> None:
        """Let a job be in a state from now on."""
        change = scheduler_pb2.JobChange(
            job_id=job_id,
            tenant=tenant,
            state=job_pb2.JobState.Value(f"JOB_STATE_{state}"),
            version=version,
            update_time=_time(at),
        )
        self.changes.append(change)

    def ListJobsChangedSince(
        self, request: scheduler_pb2.ListJobsChangedSinceRequest, context: Any
    ) -> scheduler_pb2.ListJobsChangedSinceResponse:
        assert self.check(context).tenant == ""
        begin = int(request.cursor or 0)
        changes = self.changes[begin : begin + request.limit]
        return scheduler_pb2.ListJobsChangedSinceResponse(
            changes=changes, next_cursor=str(begin + len(changes))
        )


@contextlib.contextmanager
def peers_of_billing(
    allocator_port: int, scheduler_port: int
) -> Iterator[tuple[FakeAllocator, FakeScheduler]]:
    """Serve both on loopback for as long as the block lasts."""
    allocator, scheduler = FakeAllocator(), FakeScheduler()
    servers = [
        _server(
            allocator_port,
            "gpu_allocator.v1.GpuAllocatorService",
            ListLeaseIntervals=grpc.unary_unary_rpc_method_handler(
                allocator.ListLeaseIntervals,
                request_deserializer=allocator_pb.ListLeaseIntervalsRequest.FromString,
                response_serializer=allocator_pb.ListLeaseIntervalsResponse.SerializeToString,
            ),
        ),
        _server(
            scheduler_port,
            "scheduler.v1.SchedulerService",
            ListJobsChangedSince=grpc.unary_unary_rpc_method_handler(
                scheduler.ListJobsChangedSince,
                request_deserializer=scheduler_pb2.ListJobsChangedSinceRequest.FromString,
                response_serializer=scheduler_pb2.ListJobsChangedSinceResponse.SerializeToString,
            ),
        ),
    ]
    try:
        yield allocator, scheduler
    finally:
        for server in servers:
            server.stop(grace=0).wait()


def _server(port: int, service: str, **methods: Any) -> grpc.Server:
    server = grpc.server(ThreadPoolExecutor(4))
    handler = grpc.method_handlers_generic_handler(f"lehr.api.{service}", methods)
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return server


def _message(lease: Lease) -> allocator_pb.Lease:
    return allocator_pb.Lease(
        lease_id=lease.lease_id,
        tenant=lease.tenant,
        project=lease.project,
        job_id=lease.job_id,
        attempt=lease.attempt,
        epoch=lease.epoch,
        tier=lease.tier,
        gpu_count=lease.gpu_count,
        phase=allocator_pb.LeasePhase.Value(f"LEASE_PHASE_{lease.phase}"),
        close_reason=lease.close_reason,
        version=lease.version,
        grant_time=_time(lease.grant_time),
        running_time=_time(lease.running_time),
        end_time=_time(lease.end_time),
        alive_time=_time(lease.alive_time),
        stop_time=_time(lease.stop_time),
        funded_until=_time(lease.funded_until),
        committed_time=_time(lease.committed_time),
    )


def _time(instant: datetime | None) -> Timestamp | None:
    if instant is None:
        return None
    message = Timestamp()
    message.FromDatetime(instant)
    return message
