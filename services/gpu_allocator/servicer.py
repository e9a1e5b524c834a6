"""gRPC in: proto to command, handler, and back to proto."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any

import grpc.aio

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as pb
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2_grpc as pb_grpc
from lehr.logs import metrics
from lehr.postgres import Database
from lehr.rpc.auth import caller, tenant_of_caller
from services.gpu_allocator import proto
from services.gpu_allocator.domain.errors import OperatorOnly
from services.gpu_allocator.domain.tier import Tier
from services.gpu_allocator.handlers import leases, nodes, quarantine

SERVICE_NAME = "lehr.api.gpu_allocator.v1.GpuAllocatorService"

#: Which services may call what; everything else is for the gateway alone.
POLICY: Mapping[str, frozenset[str]] = {
    "ListTiers": frozenset({"gateway", "scheduler"}),
    "Acquire": frozenset({"scheduler"}),
    "SyncNode": frozenset({"trainer_runner"}),
    "RequestStop": frozenset({"scheduler"}),
    "GetLease": frozenset({"scheduler"}),
    "ListLeaseIntervals": frozenset({"scheduler", "billing"}),
}

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often nodes speak, and how long their silence is borne."""

    sync_interval: timedelta
    live: timedelta
    """Silence after which a node does not count as there."""
    fresh: timedelta
    """Silence after which a node gets nothing new."""


class Servicer(pb_grpc.GpuAllocatorServiceServicer):
    """The allocator to its callers."""

    def __init__(self, db: Database, *, tiers: Sequence[Tier], pace: Pace) -> None:
        self._db = db
        self._tiers = tiers
        self._tier_names = frozenset(tier.tier for tier in tiers)
        self._pace = pace

    async def ListTiers(
        self, request: pb.ListTiersRequest, context: Context
    ) -> pb.ListTiersResponse:
        """Answer the kinds of GPU."""
        found = await nodes.list_tiers(
            self._tiers, db=self._db, live=self._pace.live, fresh=self._pace.fresh
        )
        return pb.ListTiersResponse(tiers=[proto.tier(one) for one in found])

    async def ListNodes(
        self, request: pb.ListNodesRequest, context: Context
    ) -> pb.ListNodesResponse:
        """Answer the nodes; only leases that the caller may see are named."""
        own = await nodes.own_lease_ids(
            tenant_of_caller(), project=caller().only_project, db=self._db
        )
        views = await nodes.list_nodes(db=self._db, live=self._pace.live)
        return pb.ListNodesResponse(nodes=[proto.node(view, own=own) for view in views])

    async def Acquire(self, request: pb.AcquireRequest, context: Context) -> pb.AcquireResponse:
        """Grant GPUs or say why not."""
        command = proto.acquire(
            request, caller_tenant=caller().tenant, known_tiers=self._tier_names
        )
        lease, refusal = await leases.acquire(command, db=self._db, fresh=self._pace.fresh)
        return pb.AcquireResponse(
            lease=None if lease is None else proto.lease(lease), refusal=refusal
        )

    async def SyncNode(self, request: pb.SyncNodeRequest, context: Context) -> pb.SyncNodeResponse:
        """Hear a node and answer what it should run."""
        began = monotonic()
        heard = proto.sync(request)
        wanted = await nodes.sync_node(heard, db=self._db, known_tiers=self._tier_names)
        response = pb.SyncNodeResponse(
            node_id=heard.node_id, leases=[proto.desired(one) for one in wanted]
        )
        response.sync_interval.FromTimedelta(self._pace.sync_interval)
        metrics.observe("node_sync_seconds", monotonic() - began)
        return response

    async def RequestStop(
        self, request: pb.RequestStopRequest, context: Context
    ) -> pb.RequestStopResponse:
        """Ask a lease to end."""
        command = proto.stop(request, tenant=caller().tenant)
        lease = await leases.request_stop(command, db=self._db)
        return pb.RequestStopResponse(lease=proto.lease(lease))

    async def GetLease(self, request: pb.GetLeaseRequest, context: Context) -> pb.GetLeaseResponse:
        """Answer one lease."""
        lease = await leases.get(request.lease_id, tenant=caller().tenant, db=self._db)
        return pb.GetLeaseResponse(lease=proto.lease(lease))

    async def ListLeaseIntervals(
        self, request: pb.ListLeaseIntervalsRequest, context: Context
    ) -> pb.ListLeaseIntervalsResponse:
        """Answer leases in the order of their changes; an empty page has no cursor."""
        found, cursor = await leases.changed_since(
            proto.cursor(request.cursor),
            tenant=caller().tenant,
            job_id=request.job_id,
            open_only=request.open_only,
            limit=proto.limit(request.limit),
            db=self._db,
        )
        return pb.ListLeaseIntervalsResponse(
            leases=[proto.lease(one) for one in found], next_cursor=str(cursor) if found else ""
        )

    async def CheckHeld(
        self, request: pb.CheckHeldRequest, context: Context
    ) -> pb.CheckHeldResponse:
        """Compare held with used; only leases that the caller may see are named."""
        view = await nodes.check_held(
            tenant_of_caller(), project=caller().only_project, db=self._db
        )
        return proto.held(view)

    async def ReleaseGpu(
        self, request: pb.ReleaseGpuRequest, context: Context
    ) -> pb.ReleaseGpuResponse:
        """End the quarantine of a GPU on an operator's word."""
        if caller().role != "operator":
            raise OperatorOnly("release a GPU from quarantine")
        command = proto.release(request, principal=caller().principal)
        return pb.ReleaseGpuResponse(
            gpu=proto.gpu(await quarantine.release_gpu(command, db=self._db))
        )
