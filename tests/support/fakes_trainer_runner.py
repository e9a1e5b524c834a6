"""What an agent asks of others, written by hand: a thread with one server for all five services."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lehr.api.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2_grpc as store_grpc
from lehr.api.common.v1 import common_pb2
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as pb
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2_grpc
from lehr.api.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from lehr.api.telemetry.v1 import telemetry_pb2_grpc
from lehr.errors import FailedPrecondition, NotFound, Unavailable
from lehr.ids import derived_id, new_id
from lehr.objects import ObjectStore
from lehr.rpc.auth import Verifier, caller
from lehr.rpc.server import Server
from lehr.training.spec import JobSpec
from tests.support.fakes_runner_storage import (
    DATASET_REVISION,
    LINK_LIFE,
    MODEL_REVISION,
    ROWS,
    RUNNER,
    TENANT,
    WEIGHTS,
    FakeStore,
    FakeTelemetry,
    digest,
    lasting,
)
from tests.support.one_service import TRUSTED
from tests.support.servers import NatsForTests, ObjectsForTests


@dataclass
class FakeAllocator(gpu_allocator_pb2_grpc.GpuAllocatorServiceServicer):
    """An allocator that grants what a test says and remembers what it was told."""

    wanted: dict[str, pb.DesiredLease] = field(default_factory=dict)
    syncs: list[tuple[float, pb.SyncNodeRequest]] = field(default_factory=list)
    closed: dict[str, pb.LeaseReport] = field(default_factory=dict)
    interval: float = 0.2
    epoch: int = 0
    is_down: bool = False
    fences_node: bool = False
    delay: float = 0.0

    def grant(self, *, ordinals: tuple[int, ...] = (0,), job_id: str = "") -> pb.DesiredLease:
        """Want a new run of a job."""
        self.epoch += 1
        job_id = job_id or new_id("job")
        lease_id = derived_id("lease", job_id, str(self.epoch))
        lease = pb.Lease(
            lease_id=lease_id,
            tenant=TENANT,
            project="vision",
            job_id=job_id,
            attempt=1,
            run_id=derived_id("run", job_id, str(self.epoch)),
            epoch=self.epoch,
            tier="cpu",
            gpu_count=len(ordinals),
        )
        self.wanted[lease_id] = pb.DesiredLease(
            lease=lease, ordinals=ordinals, funded_duration=lasting(3600)
        )
        return self.wanted[lease_id]

    def stop(self, lease_id: str, reason: str = "USER_STOPPED") -> None:
        """Want a lease to end."""
        self.wanted[lease_id].should_stop = True
        self.wanted[lease_id].stop_reason = reason

    def reports(self, lease_id: str) -> list[tuple[float, pb.LeaseReport]]:
        """Return everything said of a lease, with when it came."""
        return [
            (at, report)
            for at, request in self.syncs
            for report in request.leases
            if report.lease_id == lease_id
        ]

    @property
    def last(self) -> pb.SyncNodeRequest:
        """The newest sync."""
        return self.syncs[-1][1]

    async def SyncNode(self, request: pb.SyncNodeRequest, context: Any) -> pb.SyncNodeResponse:
        await asyncio.sleep(self.delay)
        if self.is_down:
            raise Unavailable("the allocator is down")
        if self.fences_node:
            raise FailedPrecondition("a newer one has spoken", reason="FENCED")
        assert caller().tenant == ""
        self.syncs.append((time.monotonic(), request))
        fenced = []
        for report in request.leases:
            if report.phase == pb.LEASE_PHASE_CLOSED:
                self.closed.setdefault(report.lease_id, report)
                self.wanted.pop(report.lease_id, None)
            elif report.lease_id not in self.wanted:
                lease = pb.Lease(lease_id=report.lease_id, epoch=report.epoch)
                fenced.append(pb.DesiredLease(lease=lease, is_fenced=True))
        return pb.SyncNodeResponse(
            node_id="node_1",
            leases=[*self.wanted.values(), *fenced],
            sync_interval=lasting(self.interval),
        )


@dataclass
class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """A scheduler that knows the spec of each lease."""

    specs: dict[str, JobSpec] = field(default_factory=dict)
    leases: dict[str, pb.Lease] = field(default_factory=dict)
    model_id: str = "model_1"
    asked: int = 0

    async def GetRunPlan(
        self, request: scheduler_pb2.GetRunPlanRequest, context: Any
    ) -> scheduler_pb2.GetRunPlanResponse:
        self.asked += 1
        assert caller().tenant == TENANT
        lease = self.leases.get(request.lease_id)
        if lease is None or lease.epoch != request.epoch:
            raise NotFound(f"there is no run of lease {request.lease_id}")
        return scheduler_pb2.GetRunPlanResponse(
            job_id=lease.job_id,
            run_id=lease.run_id,
            tenant=TENANT,
            project="vision",
            spec_json=self.specs[request.lease_id].model_dump_json(),
            spec_digest="d" * 64,
            model_id=self.model_id,
            model_name="toy",
            model_revision=MODEL_REVISION,
            dataset_id="ds_1",
            dataset_revision=DATASET_REVISION,
        )


@dataclass
class FakeCatalog(catalog_pb2_grpc.CatalogServiceServicer):
    """A catalog with one model and one dataset."""

    objects: ObjectStore
    is_down: bool = False
    asked: int = 0

    async def DownloadFiles(
        self, request: catalog_pb2.DownloadFilesRequest, context: Any
    ) -> catalog_pb2.DownloadFilesResponse:
        self.asked += 1
        if self.is_down:
            raise Unavailable("the catalog is down")
        known = {
            ("model", "model_1"): ("models/acme/m/model.safetensors", WEIGHTS, MODEL_REVISION),
            ("rows_of", "ds_1"): ("datasets/acme/d/rows.jsonl.zst", ROWS, DATASET_REVISION),
        }
        which = request.WhichOneof("which") or ""
        found = known.get((which, getattr(request, which)))
        if found is None:
            raise NotFound(f"there is no {which} {getattr(request, which)}")
        key, content, revision = found
        link = common_pb2.FileLink(
            name=key.rpartition("/")[2],
            size_bytes=len(content),
            sha256=digest(content),
            url=self.objects.presign_get(key, LINK_LIFE),
        )
        return catalog_pb2.DownloadFilesResponse(files=[link], revision=revision)


@dataclass
class FakePeers:
    """All services that an agent calls, and the two servers beside them."""

    allocator: FakeAllocator
    scheduler: FakeScheduler
    catalog: FakeCatalog
    checkpoint_store: FakeStore
    telemetry: FakeTelemetry
    objects: ObjectStore
    port: int = 0

    @property
    def addresses(self) -> dict[str, str]:
        """Where the agent finds them."""
        names = ("gpu_allocator", "scheduler", "catalog", "checkpoint_store", "telemetry")
        return dict.fromkeys(names, f"127.0.0.1:{self.port}")


_SERVED = (
    (
        "allocator",
        gpu_allocator_pb2_grpc.add_GpuAllocatorServiceServicer_to_server,
        "lehr.api.gpu_allocator.v1.GpuAllocatorService",
        "SyncNode",
    ),
    (
        "scheduler",
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server,
        "lehr.api.scheduler.v1.SchedulerService",
        "GetRunPlan",
    ),
    (
        "catalog",
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server,
        "lehr.api.catalog.v1.CatalogService",
        "DownloadFiles",
    ),
    (
        "checkpoint_store",
        store_grpc.add_CheckpointStoreServiceServicer_to_server,
        "lehr.api.checkpoint_store.v1.CheckpointStoreService",
        "Open Begin Commit Abort",
    ),
    (
        "telemetry",
        telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server,
        "lehr.api.telemetry.v1.TelemetryService",
        "OpenSeries GetWatermark",
    ),
)


def _made(nats_server: NatsForTests, s3: ObjectsForTests) -> FakePeers:
    objects = ObjectStore(s3.endpoint, s3.access_key, s3.secret_key, s3.bucket, s3.region)
    return FakePeers(
        allocator=FakeAllocator(),
        scheduler=FakeScheduler(),
        catalog=FakeCatalog(objects=objects),
        checkpoint_store=FakeStore(objects=objects),
        telemetry=FakeTelemetry(nats_server=nats_server),
        objects=objects,
    )


@contextlib.contextmanager
def fake_peers(nats_server: NatsForTests, s3: ObjectsForTests) -> Iterator[FakePeers]:
    """Serve the fakes on a free port, in a thread of their own."""
    peers, started, ended = _made(nats_server, s3), threading.Event(), threading.Event()

    async def serve() -> None:
        await peers.objects.put_bytes("models/acme/m/model.safetensors", WEIGHTS)
        await peers.objects.put_bytes("datasets/acme/d/rows.jsonl.zst", ROWS)
        server = Server(Verifier(TRUSTED))
        for attribute, add, name, methods in _SERVED:
            server.add_servicer(
                add,
                getattr(peers, attribute),
                service_name=name,
                policy=dict.fromkeys(methods.split(), RUNNER),
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
