"""Calls to other services: proto on the outside, values of the domain on the inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import grpc.aio
from google.protobuf.timestamp_pb2 import Timestamp

from lehr.api.billing.v1 import billing_pb2, billing_pb2_grpc
from lehr.api.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2, checkpoint_store_pb2_grpc
from lehr.api.common.v1 import common_pb2
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2, gpu_allocator_pb2_grpc
from lehr.errors import Unavailable
from lehr.money import Money
from lehr.rpc.auth import acting_for
from lehr.rpc.client import raises_platform_errors
from lehr.training.canonical import spec_json
from lehr.training.ends import RunEnd
from lehr.training.spec import JobSpec
from services.scheduler.domain.job import Authorization, Inputs
from services.scheduler.domain.placement import Funding, Tier
from services.scheduler.domain.plan import DataFacts, Resolved
from services.scheduler.domain.run import Lease, LeasePhase

PAGE = 200
RESOLVE_SECONDS = 60.0
"""Counting the tokens of a large dataset takes longer than other calls."""
VERIFY_SECONDS = 300.0
"""Checkpoints are read to tell whether they verify, one after the other if they are broken."""


_SILENT = frozenset({grpc.StatusCode.DEADLINE_EXCEEDED.name, grpc.StatusCode.UNAVAILABLE.name})
"""Reasons that gRPC gave, and no service."""


class CatalogSilent(Unavailable):
    """The catalog does not answer, or not in time."""

    reason = "CATALOG_SILENT"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """What is asked of the allocator for one run."""

    tenant: str
    project: str
    job_id: str
    attempt: int
    run_id: str
    gpu_count: int
    tiers: Sequence[tuple[str, timedelta]]
    """Tiers in order, each with the running time that is paid for on it."""
    deadline: timedelta | None


class Peers:
    """The services that the scheduler asks; each method raises what the service raised."""

    def __init__(
        self,
        *,
        catalog: grpc.aio.Channel,
        allocator: grpc.aio.Channel,
        billing: grpc.aio.Channel,
        checkpoints: grpc.aio.Channel,
    ) -> None:
        self._catalog = catalog_pb2_grpc.CatalogServiceStub(catalog)
        self._allocator = gpu_allocator_pb2_grpc.GpuAllocatorServiceStub(allocator)
        self._billing = billing_pb2_grpc.BillingServiceStub(billing)
        self._checkpoints = checkpoint_store_pb2_grpc.CheckpointStoreServiceStub(checkpoints)

    async def resolve(self, spec: JobSpec) -> Resolved:
        """Fix the revisions of a job and count its rows."""
        request = catalog_pb2.ResolveTrainingRequest(spec_json=spec_json(spec))
        try:
            with raises_platform_errors():
                found = await self._catalog.ResolveTraining(request, timeout=RESOLVE_SECONDS)
        except Unavailable as error:
            if error.reason in _SILENT:
                raise CatalogSilent(
                    "the catalog did not answer what the job trains on; ask again in a moment"
                ) from error
            raise
        return _resolved(found)

    async def tiers(self) -> dict[str, Tier]:
        """Return all tiers, what exists of them and what is free."""
        with acting_for(""), raises_platform_errors():
            found = await self._allocator.ListTiers(gpu_allocator_pb2.ListTiersRequest())
        return {one.tier: _tier(one) for one in found.tiers}

    async def prices(self, tiers: Sequence[str]) -> dict[str, Money]:
        """Return the price of one GPU for one hour; a tier without a price is left out."""
        with raises_platform_errors():
            found = await self._billing.Quote(billing_pb2.QuoteRequest(tiers=tiers))
        return {one.tier: _money(one.price_per_gpu_hour) for one in found.rates}

    async def place_hold(
        self, job_id: str, *, ordinal: int, authorization: Authorization, spec: JobSpec
    ) -> dict[str, Money]:
        """Lock prices, hold money and return the prices; the same ordinal again changes nothing."""
        request = billing_pb2.PlaceHoldRequest(
            job_id=job_id,
            ordinal=ordinal,
            max_cost=common_pb2.Money(
                currency_code=authorization.max_cost.currency,
                micros=authorization.max_cost.micros,
            ),
            tiers=spec.tiers,
            gpu_count=spec.gpus,
        )
        request.max_duration.FromTimedelta(authorization.max_duration)
        with raises_platform_errors():
            placed = await self._billing.PlaceHold(request)
        return {one.tier: _money(one.price_per_gpu_hour) for one in placed.rates}

    async def settle(self, job_id: str) -> None:
        """Let what is held for a job flow back that will not run; again is the same as once."""
        with raises_platform_errors():
            await self._billing.Settle(billing_pb2.SettleRequest(job_id=job_id))

    async def funding(self, job_id: str) -> Funding:
        """Return how long a job may still compute."""
        with raises_platform_errors():
            found = await self._billing.GetFunding(billing_pb2.GetFundingRequest(job_id=job_id))
        has_deadline = found.HasField("deadline_duration")
        return Funding(
            tiers={one.tier: one.funded_duration.ToTimedelta() for one in found.funding},
            deadline=found.deadline_duration.ToTimedelta() if has_deadline else None,
        )

    async def acquire(self, wanted: LeaseRequest) -> Lease | None:
        """Ask for GPUs; None when there are none. The same attempt again gives the same lease."""
        request = gpu_allocator_pb2.AcquireRequest(
            tenant=wanted.tenant,
            project=wanted.project,
            job_id=wanted.job_id,
            attempt=wanted.attempt,
            run_id=wanted.run_id,
            gpu_count=wanted.gpu_count,
        )
        for tier, funded in wanted.tiers:
            request.tiers.add(tier=tier).funded_duration.FromTimedelta(funded)
        if wanted.deadline is not None:
            request.deadline_duration.FromTimedelta(wanted.deadline)
        with raises_platform_errors():
            found = await self._allocator.Acquire(request)
        return _lease(found.lease) if found.HasField("lease") else None

    async def request_stop(self, lease_id: str, *, stop_time: datetime, reason: RunEnd) -> Lease:
        """Ask that a lease end; may be repeated. Return the lease as it is now."""
        request = gpu_allocator_pb2.RequestStopRequest(lease_id=lease_id, reason=reason)
        request.stop_time.FromDatetime(stop_time)
        with raises_platform_errors():
            found = await self._allocator.RequestStop(request)
        return _lease(found.lease)

    async def lease(self, lease_id: str) -> Lease:
        """Return one lease."""
        request = gpu_allocator_pb2.GetLeaseRequest(lease_id=lease_id)
        with raises_platform_errors():
            found = await self._allocator.GetLease(request)
        return _lease(found.lease)

    async def open_leases(self) -> list[Lease]:
        """Return all leases of the installation that are not closed."""
        leases: dict[str, Lease] = {}
        request = gpu_allocator_pb2.ListLeaseIntervalsRequest(open_only=True, limit=PAGE)
        while True:
            with acting_for(""), raises_platform_errors():
                page = await self._allocator.ListLeaseIntervals(request)
            # A lease that changes meanwhile comes again, newer.
            leases |= {one.lease_id: _lease(one) for one in page.leases}
            if not page.leases or page.next_cursor in ("", request.cursor):
                return list(leases.values())
            request.cursor = page.next_cursor

    async def resume_step(self, job_id: str) -> int | None:
        """Return the step that a run would continue from; None where nothing whole was saved.

        Raises:
            FailedPrecondition: NO_CHECKPOINT_VERIFIES, naming the steps; none can be read whole.
        """
        request = checkpoint_store_pb2.FindResumableRequest(job_id=job_id)
        with raises_platform_errors():
            found = await self._checkpoints.FindResumable(request, timeout=VERIFY_SECONDS)
        return found.resume_from.step if found.HasField("resume_from") else None


def _money(message: common_pb2.Money) -> Money:
    return Money(currency=message.currency_code, micros=message.micros)


def _tier(message: gpu_allocator_pb2.Tier) -> Tier:
    return Tier(
        tier=message.tier,
        memory_bytes=message.memory_bytes,
        total_count=message.total_count,
        free_count=message.free_count,
        node_count_max=message.node_count_max,
        free_per_node=tuple(message.free_per_node),
    )


def _lease(message: gpu_allocator_pb2.Lease) -> Lease:
    phase = gpu_allocator_pb2.LeasePhase.Name(message.phase).removeprefix("LEASE_PHASE_")
    return Lease(
        lease_id=message.lease_id,
        tenant=message.tenant,
        project=message.project,
        job_id=message.job_id,
        run_id=message.run_id,
        attempt=message.attempt,
        epoch=message.epoch,
        tier=message.tier,
        phase=LeasePhase(phase),
        version=message.version,
        close_reason=message.close_reason,
        close_message=message.close_message,
        running_time=_time(message.running_time) if message.HasField("running_time") else None,
    )


def _time(message: Timestamp) -> datetime:
    return message.ToDatetime(tzinfo=UTC)


def _resolved(found: catalog_pb2.ResolveTrainingResponse) -> Resolved:
    validation = found.validation_dataset
    return Resolved(
        inputs=Inputs(
            model_id=found.model.model_id,
            model_name=found.model.name,
            model_revision=found.model.revision,
            dataset_id=found.dataset.dataset_id,
            dataset_revision=found.dataset.revision,
            validation_dataset_id=validation.dataset_id,
            validation_revision=validation.revision,
        ),
        row_kind=found.dataset.row_kind,
        parameter_count=found.model.parameter_count,
        data=DataFacts(
            row_count=found.dataset.row_count,
            train_count=found.train_count,
            validation_count=found.validation_count,
            longest_tokens=found.longest_tokens,
            max_length=found.max_length,
            truncated_count=found.truncated_count,
            dropped_count=found.dropped_count,
            untrainable_count=found.untrainable_count,
            token_count=found.token_count,
            trained_token_count=found.trained_token_count,
            packed_row_count=found.packed_row_count,
        ),
        warnings=tuple(found.warnings),
    )
