"""A user with a project, the agent of a node, and the services around the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.aio.client import Client

from lehr.api.common.v1 import common_pb2
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2
from lehr.api.scheduler.v1 import job_pb2, scheduler_pb2
from lehr.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from lehr.errors import FailedPrecondition
from lehr.events import codec, subjects
from lehr.events.base import Event
from lehr.events.envelope import Envelope
from lehr.events.lease import LeaseClosed, LeaseGranted, LeasePhaseChanged, LeaseSnapshot
from lehr.ids import event_uuid, new_id
from lehr.postgres import Database
from lehr.rpc.client import raises_platform_errors
from tests.support.fakes_scheduler import FakePeers
from tests.support.one_service import OneService
from tests.support.servers import NatsForTests

ALLOWED = job_pb2.Authorization(max_cost=common_pb2.Money(currency_code="EUR", micros=5_000_000))
ALLOWED.max_duration.seconds = 3600

if TYPE_CHECKING:
    from lehr.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceAsyncStub

TABLES = "jobs, runs, plans, request_keys, job_progress, inbox, outbox"


async def until(true: Callable[[], Awaitable[bool]], *, within: float = 20.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(within):
        while not await true():
            await asyncio.sleep(0.02)


def a_spec(**fields: Any) -> job_pb2.JobSpec:
    """A spec that can run."""
    return job_pb2.JobSpec(**{"name": "tune", "model": "smol", "dataset": "qa"} | fields)


@dataclass(frozen=True, kw_only=True)
class Story:
    """Who takes part, and what they do."""

    service: OneService
    peers: FakePeers
    admin: Database
    bus: Client
    user: SchedulerServiceAsyncStub
    """Somebody of the tenant acme, through the gateway."""

    @classmethod
    @contextlib.asynccontextmanager
    async def begin(
        cls, service: OneService, peers: FakePeers, admin: Database, nats_server: NatsForTests
    ) -> AsyncIterator[Story]:
        """Clear the table and let everybody come."""
        async with admin.transaction() as conn:
            await conn.execute("SET LOCAL search_path = scheduler")
            await conn.execute(f"TRUNCATE {TABLES}")
            await conn.execute("UPDATE clock.shift SET amount = '0'")
        peers.reset()
        bus = await nats.connect(
            nats_server.url, user=nats_server.user, password=nats_server.password
        )
        async with service.called_by("gateway") as channel:
            yield cls(
                service=service,
                peers=peers,
                admin=admin,
                bus=bus,
                user=SchedulerServiceStub(channel),
            )
        await bus.close()

    async def launch(self, *, key: str = "", **fields: Any) -> job_pb2.Job:
        """Create a job."""
        request = scheduler_pb2.CreateJobRequest(
            spec=a_spec(**fields), authorization=ALLOWED, request_id=key or new_id("key")
        )
        return (await self.user.CreateJob(request)).job

    async def job(self, job_id: str) -> job_pb2.Job:
        """Return the job as its user sees it."""
        request = scheduler_pb2.GetJobRequest(job_id=job_id)
        return (await self.user.GetJob(request, wait_for_ready=True)).job

    async def stop(self, job_id: str) -> job_pb2.Job:
        """Stop a job."""
        return (await self.user.StopJob(scheduler_pb2.StopJobRequest(job_id=job_id))).job

    async def resume(self, job_id: str, *, key: str = "again") -> job_pb2.Job:
        """Resume a job."""
        request = scheduler_pb2.ResumeJobRequest(job_id=job_id, request_id=key)
        return (await self.user.ResumeJob(request)).job

    async def comes_to(self, job_id: str, state: str) -> job_pb2.Job:
        """Wait until a job is in a state."""

        async def there() -> bool:
            return job_pb2.JobState.Name((await self.job(job_id)).state) == f"JOB_STATE_{state}"

        await until(there)
        return await self.job(job_id)

    async def started(self, **fields: Any) -> tuple[job_pb2.Job, gpu_allocator_pb2.Lease]:
        """Create a job and wait until it has GPUs."""
        job = await self.launch(**fields)
        job = await self.comes_to(job.job_id, "STARTING")
        return job, self.peers.allocator.of_job(job.job_id)[-1]

    async def running(self, **fields: Any) -> tuple[job_pb2.Job, gpu_allocator_pb2.Lease]:
        """Create a job and let it compute."""
        job, lease = await self.started(**fields)
        self.peers.allocator.move(lease.lease_id, "RUNNING", running=True)
        await self.tell_lease(lease)
        return await self.comes_to(job.job_id, "RUNNING"), lease

    async def close(self, lease: gpu_allocator_pb2.Lease, reason: str) -> None:
        """Let the allocator close a lease and tell of it."""
        self.peers.allocator.move(lease.lease_id, "CLOSED", reason=reason)
        await self.tell_lease(lease)

    async def tell_lease(
        self, lease: gpu_allocator_pb2.Lease, *, event_id: str = "", sequence: int = 0
    ) -> None:
        """Publish what a lease is now."""
        phase = gpu_allocator_pb2.LeasePhase.Name(lease.phase).removeprefix("LEASE_PHASE_")
        snapshot = LeaseSnapshot(
            lease_id=lease.lease_id,
            job_id=lease.job_id,
            project=lease.project,
            run_id=lease.run_id,
            attempt=lease.attempt,
            epoch=lease.epoch,
            node_id=lease.node_id,
            tier=lease.tier,
            gpu_count=lease.gpu_count,
            phase=phase,
            close_reason=lease.close_reason,
            close_message=lease.close_message,
            grant_time=lease.grant_time.ToDatetime(tzinfo=UTC),
            running_time=(
                lease.running_time.ToDatetime(tzinfo=UTC)
                if lease.HasField("running_time")
                else None
            ),
        )
        models = {"GRANTED": LeaseGranted, "CLOSED": LeaseClosed}
        event = models.get(phase, LeasePhaseChanged)(tenant=lease.tenant, lease=snapshot)
        await self.tell(event, event_id=event_id, sequence=sequence or lease.version)

    async def tell(self, event: Event, *, event_id: str = "", sequence: int = 1) -> None:
        """Publish an event; a given id may be published again."""
        envelope = Envelope(
            event_id=event_id or str(event_uuid()),
            source="/services/test",
            type=event.type_name(),
            subject_id=event.subject_id,
            tenant=event.tenant,
            sequence=sequence,
            time=datetime.now(UTC),
            traceparent=None,
            data=event,
        )
        # Without Nats-Msg-Id, so that the stream's own window hides no duplicate.
        await self.bus.jetstream().publish(subjects.build(event), codec.encode(envelope))

    async def drained(self, durable: str, *, stream: str) -> None:
        """Wait until a consumer has acknowledged everything."""

        async def done() -> bool:
            info = await self.bus.jetstream().consumer_info(stream, durable)
            return not info.num_pending and not info.num_ack_pending

        await until(done)

    async def facts(self, job_id: str) -> list[tuple[str, int]]:
        """Return the events of a job in the order in which they were written."""
        async with self.admin.connection() as conn:
            rows = await conn.fetch(
                "SELECT body::json ->> 'type' AS type, (body::json ->> 'sequence')::int AS sequence"
                "  FROM scheduler.outbox WHERE subject_id = $1 ORDER BY outbox_id",
                job_id,
            )
        return [(row["type"].split(".")[2], row["sequence"]) for row in rows]

    async def count(self, table: str) -> int:
        """Return the rows of a table."""
        async with self.admin.connection() as conn:
            return int(await conn.fetchval(f"SELECT count(*) FROM scheduler.{table}"))  # noqa: S608


async def refused_resume(story: Story, job_id: str, *, key: str = "again") -> str:
    """Return the reason with which a resume is refused."""
    with pytest.raises(FailedPrecondition) as error, raises_platform_errors():
        await story.resume(job_id, key=key)
    return error.value.reason
