"""An allocator of several replicas, the nodes that speak to it, and those who ask it for GPUs."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import asyncpg
from google.protobuf.duration_pb2 import Duration

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as pb
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2_grpc as pb_grpc
from lehr.ids import derived_id
from lehr.rpc.auth import acting_for
from lehr.rpc.client import raises_platform_errors
from tests.support.one_service import OneService

GRANTED, STARTING, RUNNING, DRAINING, LOST, CLOSED = range(1, 7)
FREE, HELD, CLEARING, QUARANTINED, ABSENT = range(1, 6)
TIER = "h100-80gb"
BEAT_SECONDS = 20.0

TABLES = (
    "leases, gpus, gpu_holds, gpu_releases, nodes, job_fences, outages, heartbeat, outbox, inbox"
)


def lasting(seconds: float) -> Duration:
    """Return a length of time for a message."""
    message = Duration()
    message.FromTimedelta(timedelta(seconds=seconds))
    return message


def instant(message: Any, field_name: str) -> datetime | None:
    """Return a time of a message, or None where it is absent."""
    if not message.HasField(field_name):
        return None
    found: datetime = getattr(message, field_name).ToDatetime(tzinfo=UTC)
    return found


def seconds_between(message: Any, earlier: str, later: str) -> float:
    """Return how long after one time of a message another is."""
    first, second = instant(message, earlier), instant(message, later)
    assert first is not None
    assert second is not None
    return (second - first).total_seconds()


async def until(question: Callable[[], Awaitable[bool]], *, within: float = 30.0) -> None:
    """Ask until the answer is yes."""
    async with asyncio.timeout(within):
        while not await question():
            await asyncio.sleep(0.05)


@dataclass
class Allocator:
    """The allocator as its callers see it; ``services`` are its replicas."""

    services: Sequence[OneService]
    admin: "asyncpg.Connection[asyncpg.Record]"
    jobs: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def call(
        self,
        caller: str,
        method: str,
        request: Any,
        *,
        replica: int = 0,
        tenant: str = "acme",
        role: str = "service",
        within: float = 10.0,
    ) -> Any:
        """Call one replica once, in the name of a service; failures are typed."""
        service = self.services[replica]
        async with service.called_by(caller, tenant=tenant) as opened:
            stub = pb_grpc.GpuAllocatorServiceStub(opened)
            acting = acting_for(tenant, principal="somebody", role=role)
            with acting, raises_platform_errors():
                return await getattr(stub, method)(request, timeout=within)

    def ask(self, job: str | None = None, **fields: Any) -> pb.AcquireRequest:
        """Return a request for one GPU by the first attempt of a fresh job."""
        job_id = job or derived_id("job", "acme", str(next(self.jobs)))
        tiers = fields.pop("tiers", [TIER])
        defaults: dict[str, Any] = {
            "tenant": "acme",
            "project": "default",
            "job_id": job_id,
            "attempt": 1,
            "run_id": f"run_of_{job_id}",
            "gpu_count": 1,
            "tiers": [pb.TierFunding(tier=tier, funded_duration=lasting(3600)) for tier in tiers],
        }
        return pb.AcquireRequest(**{**defaults, **fields})

    async def acquire(self, request: pb.AcquireRequest | None = None, **how: Any) -> Any:
        """Ask as the scheduler does."""
        return await self.call("scheduler", "Acquire", request or self.ask(), **how)

    async def granted(self, request: pb.AcquireRequest | None = None, **how: Any) -> pb.Lease:
        """Ask, and insist on a lease."""
        answer = await self.acquire(request, **how)
        assert answer.HasField("lease"), answer.refusal
        lease: pb.Lease = answer.lease
        return lease

    async def lease(self, lease_id: str, **how: Any) -> pb.Lease:
        """Return a lease as it is now."""
        request = pb.GetLeaseRequest(lease_id=lease_id)
        answer = await self.call("scheduler", "GetLease", request, **how)
        lease: pb.Lease = answer.lease
        return lease

    async def stop(
        self, lease_id: str, *, at: datetime | None = None, reason: str = "USER_STOPPED", **how: Any
    ) -> pb.Lease:
        """Ask a lease to end."""
        request = pb.RequestStopRequest(lease_id=lease_id, reason=reason)
        if at is not None:
            request.stop_time.FromDatetime(at)
        answer = await self.call("scheduler", "RequestStop", request, **how)
        lease: pb.Lease = answer.lease
        return lease

    async def intervals(self, cursor: str = "", **fields: Any) -> Any:
        """Return a page of leases for the whole platform."""
        how = {"tenant": fields.pop("tenant", ""), "replica": fields.pop("replica", 0)}
        request = pb.ListLeaseIntervalsRequest(cursor=cursor, **fields)
        return await self.call("billing", "ListLeaseIntervals", request, **how)

    async def held(self, **how: Any) -> Any:
        """Return the comparison of held and used."""
        return await self.call("gateway", "CheckHeld", pb.CheckHeldRequest(), **how)

    async def gpu_states(self) -> dict[tuple[str, int], int]:
        """Return the state of every GPU by node and ordinal."""
        answer = await self.call("gateway", "ListNodes", pb.ListNodesRequest())
        return {(node.name, gpu.ordinal): gpu.state for node in answer.nodes for gpu in node.gpus}

    async def events_of(self, lease_id: str) -> list[tuple[str, int]]:
        """Return type and sequence of what was told of a lease, in order."""
        rows = await self.admin.fetch(
            "SELECT body::jsonb ->> 'type' AS type, (body::jsonb ->> 'sequence')::int AS sequence"
            "  FROM gpu_allocator.outbox WHERE subject_id = $1 ORDER BY outbox_id",
            lease_id,
        )
        return [(row["type"], row["sequence"]) for row in rows]

    async def value(self, statement: str, *arguments: Any) -> Any:
        """Return one value from the database, past the allocator."""
        return await self.admin.fetchval(statement, *arguments)

    async def shift(self, seconds: float) -> None:
        """Move the clock at once, as if the allocator had been away so long."""
        await self.admin.execute(
            "UPDATE clock.shift SET amount = amount + $1", timedelta(seconds=seconds)
        )

    async def beat(self) -> None:
        """Wait for the next heartbeat, and for the judgement after it."""
        now = await self.value("SELECT clock.now()")

        async def has_beaten_twice() -> bool:
            newest = await self.value("SELECT beat_time FROM gpu_allocator.heartbeat")
            return newest is not None and newest > now + timedelta(seconds=1.2)

        await until(has_beaten_twice, within=BEAT_SECONDS)

    async def pass_seconds(self, seconds: float) -> None:
        """Let time pass while the allocator is there."""
        for _ in range(int(seconds // 3)):
            await self.shift(3)
            await self.beat()

    async def silent_until(self, lease_id: str, phase: int) -> pb.Lease:
        """Let time pass without a word from the node until the lease is there."""
        for _ in range(40):
            lease = await self.lease(lease_id)
            if lease.phase == phase:
                return lease
            await self.pass_seconds(3)
        raise AssertionError(f"lease {lease_id} never got to phase {phase}")

    async def clear(self) -> None:
        """Forget everything, and set the clock right."""
        tables = ", ".join(f"gpu_allocator.{name}" for name in TABLES.split(", "))
        await self.admin.execute("UPDATE clock.shift SET amount = '0'")
        await until(partial(self._truncated, tables))

    async def _truncated(self, tables: str) -> bool:
        # The loops of the replicas lock tables in another order, and sometimes win.
        try:
            await self.admin.execute(f"TRUNCATE {tables}")
        except asyncpg.DeadlockDetectedError:
            return False
        return True


@dataclass
class NodeUnderTest:
    """A node whose reports a test makes up."""

    allocator: Allocator
    name: str
    gpu_count: int = 1
    tier: str = TIER
    incarnation: int = 1
    boot_id: str = "boot-1"
    sequence: int = 0
    epoch: int = 0
    """What the journal holds for every GPU."""
    is_clear: bool = True
    is_stuck: bool = False

    def request(self, *leases: pb.LeaseReport, **fields: Any) -> pb.SyncNodeRequest:
        """Return the next sync."""
        self.sequence += 1
        gpus = [
            pb.GpuReport(
                ordinal=ordinal,
                tier=self.tier,
                memory_bytes=80_000_000_000,
                device_id=f"GPU-{self.name}-{ordinal}",
                is_clear=self.is_clear,
                epoch=self.epoch,
                is_stuck=self.is_stuck,
            )
            for ordinal in range(self.gpu_count)
        ]
        defaults: dict[str, Any] = {
            "node_name": self.name,
            "incarnation": self.incarnation,
            "boot_id": self.boot_id,
            "sync_sequence": self.sequence,
            "gpus": gpus,
            "leases": leases,
        }
        return pb.SyncNodeRequest(**{**defaults, **fields})

    async def send(self, request: pb.SyncNodeRequest, *, replica: int = 0) -> Any:
        """Send a sync, new or old."""
        return await self.allocator.call(
            "trainer_runner", "SyncNode", request, replica=replica, tenant=""
        )

    async def sync(self, *leases: pb.LeaseReport, **fields: Any) -> Any:
        """Send the next sync."""
        return await self.send(self.request(*leases, **fields))

    def starts_anew(self, *, boot_id: str | None = None) -> None:
        """Be the next incarnation of the agent, or of the whole machine."""
        self.incarnation += 1
        self.sequence = 0
        self.boot_id = boot_id or self.boot_id

    async def run(self, lease: pb.Lease, *, running_age: float = 0) -> None:
        """Take a lease and compute."""
        await self.sync()
        self.epoch, self.is_clear = lease.epoch, False
        await self.sync(says(lease, RUNNING, running_age=running_age))


def says(lease: pb.Lease, phase: int, **fields: Any) -> pb.LeaseReport:
    """Return what a node says of a lease; ages are seconds."""
    ages: dict[str, Any] = {
        name: lasting(value) for name, value in fields.items() if name.endswith("_age")
    }
    others = {name: value for name, value in fields.items() if not name.endswith("_age")}
    if phase == CLOSED:
        others.setdefault("close_reason", "COMPLETED")
    return pb.LeaseReport(
        lease_id=lease.lease_id,
        epoch=others.pop("epoch", lease.epoch),
        phase=phase,  # type: ignore[arg-type]
        **ages,
        **others,
    )
