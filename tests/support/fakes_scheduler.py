"""What the scheduler asks of others, written by hand: a thread with one server for all four."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lehr.api.billing.v1 import billing_pb2, billing_pb2_grpc
from lehr.api.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2, checkpoint_store_pb2_grpc
from lehr.api.common.v1 import common_pb2
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2, gpu_allocator_pb2_grpc
from lehr.errors import (
    AlreadyExists,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from lehr.ids import derived_id
from lehr.rpc.auth import Verifier, caller
from lehr.rpc.server import Server
from tests.support.one_service import TRUSTED

Phase = gpu_allocator_pb2.LeasePhase
CLOSED = Phase.LEASE_PHASE_CLOSED
SCHEDULER = frozenset({"scheduler"})


class FakeCatalog(catalog_pb2_grpc.CatalogServiceServicer):
    """A catalog that knows the model smol, and the datasets qa (100 rows) and empty."""

    async def ResolveTraining(
        self, request: catalog_pb2.ResolveTrainingRequest, context: Any
    ) -> catalog_pb2.ResolveTrainingResponse:
        if '"dataset":"nosuch"' in request.spec_json:
            raise NotFound("there is no dataset nosuch", dataset="nosuch")
        rows = 0 if '"dataset":"empty"' in request.spec_json else 90
        return catalog_pb2.ResolveTrainingResponse(
            model=catalog_pb2.Model(
                model_id="model_1", name="smol", revision="a" * 64, parameter_count=135_000_000
            ),
            dataset=catalog_pb2.Dataset(
                dataset_id="ds_1", name="qa", revision="b" * 64, row_kind="messages", row_count=100
            ),
            max_length=256,
            train_count=rows,
            validation_count=10,
            dropped_count=90 - rows,
            longest_tokens=300,
            token_count=9000,
            trained_token_count=4000,
            warnings=["the catalog says hello"],
        )


@dataclass
class FakeAllocator(gpu_allocator_pb2_grpc.GpuAllocatorServiceServicer):
    """An allocator of one node a tier; leases are closed by the test."""

    free: dict[str, int] = field(default_factory=dict)
    total: dict[str, int] = field(default_factory=dict)
    leases: dict[str, gpu_allocator_pb2.Lease] = field(default_factory=dict)
    asked: list[gpu_allocator_pb2.AcquireRequest] = field(default_factory=list)
    stops: list[tuple[str, str, datetime]] = field(default_factory=list)
    obeys_stops: bool = True
    is_down: bool = False
    epoch: int = 0

    def stock(self, **tiers: int) -> None:
        """Have so many free GPUs of each tier, and no lease."""
        self.total = dict(tiers)
        self.free = dict(tiers)
        self.asked.clear()
        self.stops.clear()
        self.leases.clear()
        self.obeys_stops, self.is_down = True, False

    def of_job(self, job_id: str) -> list[gpu_allocator_pb2.Lease]:
        """Return the leases of a job in order."""
        return [lease for lease in self.leases.values() if lease.job_id == job_id]

    def move(
        self, lease_id: str, phase: str, *, reason: str = "", running: bool = False
    ) -> gpu_allocator_pb2.Lease:
        """Let a lease come to a phase; a closed one gives its GPUs back."""
        lease = self.leases[lease_id]
        if phase == "CLOSED" and lease.phase != CLOSED:
            self.free[lease.tier] += lease.gpu_count
        lease.phase = Phase.Value(f"LEASE_PHASE_{phase}")
        lease.close_reason = reason
        lease.version += 1
        if running:
            lease.running_time.FromDatetime(datetime.now(UTC))
        return lease

    async def ListTiers(
        self, request: gpu_allocator_pb2.ListTiersRequest, context: Any
    ) -> gpu_allocator_pb2.ListTiersResponse:
        self._check()
        return gpu_allocator_pb2.ListTiersResponse(
            tiers=[
                gpu_allocator_pb2.Tier(
                    tier=tier,
                    memory_bytes=80 * 1024**3,
                    total_count=count,
                    free_count=self.free[tier],
                    node_count_max=count,
                    free_per_node=[self.free[tier]],
                )
                for tier, count in self.total.items()
            ]
        )

    async def Acquire(
        self, request: gpu_allocator_pb2.AcquireRequest, context: Any
    ) -> gpu_allocator_pb2.AcquireResponse:
        self._check()
        self.asked.append(request)
        lease_id = derived_id("lease", request.job_id, str(request.attempt))
        if lease_id not in self.leases:
            fitting = [one for one in request.tiers if self.free[one.tier] >= request.gpu_count]
            if not fitting:
                return gpu_allocator_pb2.AcquireResponse(refusal="no GPUs are free")
            self._grant(lease_id, request, fitting[0].tier)
        return gpu_allocator_pb2.AcquireResponse(lease=self.leases[lease_id])

    async def RequestStop(
        self, request: gpu_allocator_pb2.RequestStopRequest, context: Any
    ) -> gpu_allocator_pb2.RequestStopResponse:
        self._check()
        lease = self._of_caller(request.lease_id)
        self.stops.append(
            (request.lease_id, request.reason, request.stop_time.ToDatetime(tzinfo=UTC))
        )
        if self.obeys_stops and lease.phase != CLOSED:
            self.move(request.lease_id, "CLOSED", reason=request.reason)
        return gpu_allocator_pb2.RequestStopResponse(lease=lease)

    async def GetLease(
        self, request: gpu_allocator_pb2.GetLeaseRequest, context: Any
    ) -> gpu_allocator_pb2.GetLeaseResponse:
        self._check()
        return gpu_allocator_pb2.GetLeaseResponse(lease=self._of_caller(request.lease_id))

    async def ListLeaseIntervals(
        self, request: gpu_allocator_pb2.ListLeaseIntervalsRequest, context: Any
    ) -> gpu_allocator_pb2.ListLeaseIntervalsResponse:
        self._check()
        assert request.open_only
        assert caller().tenant == ""
        # Pages of one, so that paging is always at work.
        known = [one for one in self.leases.values() if one.phase != CLOSED]
        begin = int(request.cursor or 0)
        more = str(begin + 1) if begin + 1 < len(known) else ""
        return gpu_allocator_pb2.ListLeaseIntervalsResponse(
            leases=known[begin : begin + 1], next_cursor=more
        )

    def _check(self) -> None:
        if self.is_down:
            raise Unavailable("the allocator is down")

    def _of_caller(self, lease_id: str) -> gpu_allocator_pb2.Lease:
        lease = self.leases.get(lease_id)
        if lease is None or lease.tenant != caller().tenant:
            raise NotFound(f"there is no lease {lease_id}")
        return lease

    def _grant(self, lease_id: str, request: gpu_allocator_pb2.AcquireRequest, tier: str) -> None:
        self.epoch += 1
        self.free[tier] -= request.gpu_count
        lease = gpu_allocator_pb2.Lease(
            lease_id=lease_id,
            tenant=request.tenant,
            project=request.project,
            job_id=request.job_id,
            attempt=request.attempt,
            run_id=request.run_id,
            epoch=self.epoch,
            node_id="node_1",
            tier=tier,
            gpu_count=request.gpu_count,
            phase=Phase.LEASE_PHASE_GRANTED,
            version=1,
        )
        lease.grant_time.FromDatetime(datetime.now(UTC))
        self.leases[lease_id] = lease


@dataclass
class FakeBilling(billing_pb2_grpc.BillingServiceServicer):
    """Billing with prices for three tiers, credit for what the test says, and holds by key."""

    credit_micros: int = 10**12
    prices: dict[str, int] = field(
        default_factory=lambda: {"cpu": 50_000, "h": 2_500_000, "l": 900_000}
    )
    prices_at_hold: dict[str, int] = field(default_factory=dict)
    """Published in the moment before the next hold."""
    settled: list[str] = field(default_factory=list)
    too_dear: set[tuple[str, str]] = field(default_factory=set)
    """Jobs and tiers that they are not paid for on."""
    holds: dict[tuple[str, int], billing_pb2.PlaceHoldRequest] = field(default_factory=dict)
    funded_seconds: dict[str, int] = field(default_factory=lambda: defaultdict(lambda: 3600))
    """By job."""
    deadline_seconds: int = 3600
    is_down: bool = False

    async def Quote(
        self, request: billing_pb2.QuoteRequest, context: Any
    ) -> billing_pb2.QuoteResponse:
        return billing_pb2.QuoteResponse(rates=self._rates(request.tiers), rate_version="1")

    async def PlaceHold(
        self, request: billing_pb2.PlaceHoldRequest, context: Any
    ) -> billing_pb2.PlaceHoldResponse:
        if self.is_down:
            raise Unavailable("billing is down")
        if request.max_cost.micros > self.credit_micros:
            raise ResourceExhausted("not enough credit", reason="INSUFFICIENT_CREDIT")
        key = (request.job_id, request.ordinal)
        if self.holds.setdefault(key, request) != request:
            raise AlreadyExists("another hold has this ordinal")
        self.prices |= self.prices_at_hold
        return billing_pb2.PlaceHoldResponse(rates=self._rates(request.tiers))

    async def Settle(
        self, request: billing_pb2.SettleRequest, context: Any
    ) -> billing_pb2.SettleResponse:
        self.settled.append(request.job_id)
        return billing_pb2.SettleResponse()

    async def GetFunding(
        self, request: billing_pb2.GetFundingRequest, context: Any
    ) -> billing_pb2.GetFundingResponse:
        hold = self.holds[request.job_id, 1]
        found = billing_pb2.GetFundingResponse()
        found.deadline_duration.seconds = self.deadline_seconds
        for tier in hold.tiers:
            funding = found.funding.add(tier=tier)
            if (request.job_id, tier) not in self.too_dear:
                funding.funded_duration.seconds = self.funded_seconds[request.job_id]
        return found

    def _rates(self, tiers: Sequence[str]) -> list[billing_pb2.Rate]:
        return [
            billing_pb2.Rate(
                tier=tier,
                price_per_gpu_hour=common_pb2.Money(currency_code="EUR", micros=micros),
            )
            for tier, micros in self.prices.items()
            if tier in tiers
        ]


@dataclass
class FakeCheckpoints(checkpoint_store_pb2_grpc.CheckpointStoreServiceServicer):
    """A checkpoint store that knows of which jobs one is resumable, and of which none verifies."""

    of_job: dict[str, list[bool]] = field(default_factory=dict)
    """Whether each is resumable, by step."""
    broken: set[str] = field(default_factory=set)
    """Jobs whose checkpoints cannot be read."""

    async def FindResumable(
        self, request: checkpoint_store_pb2.FindResumableRequest, context: Any
    ) -> checkpoint_store_pb2.FindResumableResponse:
        steps = [step for step, each in enumerate(self.of_job.get(request.job_id, []), 1) if each]
        if steps and request.job_id in self.broken:
            raise FailedPrecondition(
                f"none verifies: step {steps[-1]}: gone", reason="NO_CHECKPOINT_VERIFIES"
            )
        found = checkpoint_store_pb2.FindResumableResponse()
        if steps:
            found.resume_from.step = steps[-1]
        return found


@dataclass
class FakePeers:
    """All services that the scheduler calls."""

    catalog: FakeCatalog = field(default_factory=FakeCatalog)
    allocator: FakeAllocator = field(default_factory=FakeAllocator)
    billing: FakeBilling = field(default_factory=FakeBilling)
    checkpoints: FakeCheckpoints = field(default_factory=FakeCheckpoints)
    port: int = 0

    @property
    def addresses(self) -> dict[str, str]:
        """Where the scheduler finds them."""
        address = f"127.0.0.1:{self.port}"
        names = ("catalog", "gpu_allocator", "billing", "checkpoint_store")
        return dict.fromkeys(names, address)

    def reset(self) -> None:
        """Forget what tests before did: one cpu slot, one h, two l, and credit."""
        self.allocator.stock(cpu=1, h=1, l=2)
        self.billing.credit_micros, self.billing.deadline_seconds = 10**12, 3600
        self.billing.is_down = False
        self.billing.prices |= {"cpu": 50_000, "h": 2_500_000, "l": 900_000}
        self.billing.prices_at_hold.clear()
        self.billing.settled.clear()
        self.billing.too_dear.clear()
        self.billing.funded_seconds.clear()


_SERVED = (
    ("catalog", catalog_pb2_grpc.add_CatalogServiceServicer_to_server, "ResolveTraining"),
    (
        "allocator",
        gpu_allocator_pb2_grpc.add_GpuAllocatorServiceServicer_to_server,
        "ListTiers Acquire RequestStop GetLease ListLeaseIntervals",
    ),
    (
        "billing",
        billing_pb2_grpc.add_BillingServiceServicer_to_server,
        "Quote PlaceHold GetFunding Settle",
    ),
    (
        "checkpoints",
        checkpoint_store_pb2_grpc.add_CheckpointStoreServiceServicer_to_server,
        "FindResumable",
    ),
)
_NAMES = {
    "catalog": "lehr.api.catalog.v1.CatalogService",
    "allocator": "lehr.api.gpu_allocator.v1.GpuAllocatorService",
    "billing": "lehr.api.billing.v1.BillingService",
    "checkpoints": "lehr.api.checkpoint_store.v1.CheckpointStoreService",
}


@contextlib.contextmanager
def fake_peers() -> Iterator[FakePeers]:
    """Serve the fakes on a free port, in a thread of their own, so that they outlive a test."""
    peers, started, ended = FakePeers(), threading.Event(), threading.Event()

    async def serve() -> None:
        server = Server(Verifier(TRUSTED))
        for attribute, add, methods in _SERVED:
            server.add_servicer(
                add,
                getattr(peers, attribute),
                service_name=_NAMES[attribute],
                policy=dict.fromkeys(methods.split(), SCHEDULER),
            )
        peers.port = await server.start("127.0.0.1:0")
        started.set()
        await asyncio.to_thread(ended.wait)
        await server.stop(grace=0)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(timeout=20), "the fakes did not start"
    try:
        yield peers
    finally:
        ended.set()
        thread.join(timeout=20)
