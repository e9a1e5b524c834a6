"""Messages of the API to values of the domain and back; the only other place that knows both."""

from collections import Counter
from collections.abc import Collection
from datetime import datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as pb
from lehr.errors import FieldViolation, InvalidArgument
from lehr.ids import derived_id, parse_id
from lehr.logs import get_logger
from lehr.rpc.times import duration_of, instant_of
from lehr.text import storable
from lehr.training.ends import RunEnd
from services.gpu_allocator.domain.desired import Desired
from services.gpu_allocator.domain.errors import TenantMismatch, TierUnknown
from services.gpu_allocator.domain.gpu import Gpu, GpuReport, GpuState, ReleaseGpu
from services.gpu_allocator.domain.grant import AcquireGpus, TierFunding
from services.gpu_allocator.domain.lease import Lease, LeasePhase, LeaseReport
from services.gpu_allocator.domain.node import Sync
from services.gpu_allocator.domain.tier import TierCapacity
from services.gpu_allocator.handlers.leases import StopLease
from services.gpu_allocator.handlers.nodes import HeldView, NodeView

PAGE = 200
PAGE_MAX = 1000
REASON_CHARACTERS_MAX = 500
ORDINAL_MAX = 2**31 - 1

_PHASES = {phase: pb.LeasePhase.Value(f"LEASE_PHASE_{phase}") for phase in LeasePhase}
_REPORTED = {number: phase for phase, number in _PHASES.items() if phase is not LeasePhase.LOST}
_GPU_STATES = {state: pb.GpuState.Value(f"GPU_STATE_{state}") for state in GpuState}
#: A run may not be asked to have succeeded.
_STOP_REASONS = frozenset(RunEnd) - {RunEnd.COMPLETED, RunEnd.EARLY_STOPPED}


class _Wrong:
    """Collects what is wrong with a request, so that all of it is told at once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._fields: list[FieldViolation] = []

    def unless(self, is_good: object, field: str, description: str) -> None:
        if not is_good:
            self._fields.append(FieldViolation(field=field, description=description))

    def refuse(self) -> None:
        if self._fields:
            told = "; ".join(f"{one.field} {one.description}" for one in self._fields)
            raise InvalidArgument(f"{self._what}: {told}", fields=self._fields)


def acquire(
    request: pb.AcquireRequest, *, caller_tenant: str, known_tiers: Collection[str]
) -> AcquireGpus:
    """Read a request for GPUs.

    Raises:
        InvalidArgument: fields are missing or wrong.
        TierUnknown: a tier that this installation does not describe.
        TenantMismatch: the call is made for another tenant.
    """
    wrong = _Wrong("GPUs cannot be granted")
    for field in ("tenant", "project", "job_id", "run_id"):
        wrong.unless(getattr(request, field), field, "must be set")
    wrong.unless(request.attempt >= 1, "attempt", "must be 1 or more")
    wrong.unless(request.gpu_count >= 1, "gpu_count", "must be 1 or more")
    wrong.unless(request.tiers, "tiers", "must name at least one tier")
    funded = [
        duration_of(one.funded_duration, field=f"tiers[{index}].funded_duration")
        for index, one in enumerate(request.tiers)
    ]
    for index, duration in enumerate(funded):
        is_funded = duration > timedelta()
        wrong.unless(is_funded, f"tiers[{index}].funded_duration", "must be longer than nothing")
    wrong.refuse()
    if caller_tenant not in {"", request.tenant}:
        raise TenantMismatch(
            f"the call is made for tenant {caller_tenant} and asks for GPUs of another",
            tenant=caller_tenant,
        )
    if unknown := sorted({one.tier for one in request.tiers} - set(known_tiers)):
        raise TierUnknown(
            f"there is no tier {', '.join(unknown)}; there are {', '.join(sorted(known_tiers))}",
            tiers=" ".join(unknown),
        )
    return AcquireGpus(
        tenant=request.tenant,
        project=request.project,
        job_id=request.job_id,
        attempt=request.attempt,
        run_id=request.run_id,
        gpu_count=request.gpu_count,
        tiers=tuple(
            TierFunding(tier=one.tier, funded_duration=duration)
            for one, duration in zip(request.tiers, funded, strict=True)
        ),
        deadline_duration=_optional(request, "deadline_duration"),
    )


def stop(request: pb.RequestStopRequest, *, tenant: str) -> StopLease:
    """Read a request to stop; without a stop time it is now."""
    wrong = _Wrong("the lease cannot be stopped")
    wrong.unless(request.lease_id, "lease_id", "must be set")
    reasons = ", ".join(sorted(_STOP_REASONS))
    wrong.unless(request.reason in _STOP_REASONS, "reason", f"must be one of {reasons}")
    wrong.refuse()
    has_time = request.HasField("stop_time")
    at = instant_of(request.stop_time, field="stop_time") if has_time else None
    return StopLease(
        lease_id=request.lease_id, tenant=tenant, stop_time=at, reason=RunEnd(request.reason)
    )


def sync(request: pb.SyncNodeRequest) -> Sync:
    """Read what a node says.

    A report of a lease that cannot be read is left out and logged: it is as if the node had not
    spoken of that lease, and the others do not suffer.

    Raises:
        InvalidArgument: fields of the node or of its GPUs are missing, wrong or doubled.
    """
    wrong = _Wrong(f"the sync of node {request.node_name[:80]!r} cannot be heard")
    wrong.unless(request.node_name, "node_name", "must be set")
    wrong.unless(request.boot_id, "boot_id", "must be set")
    wrong.unless(request.incarnation >= 1, "incarnation", "must be 1 or more")
    wrong.unless(request.sync_sequence >= 1, "sync_sequence", "must be 1 or more")
    ordinals = [gpu.ordinal for gpu in request.gpus]
    wrong.unless(len(ordinals) == len(set(ordinals)), "gpus", "must name each ordinal once")
    for index, gpu in enumerate(request.gpus):
        wrong.unless(gpu.tier, f"gpus[{index}].tier", "must be set")
        wrong.unless(gpu.ordinal <= ORDINAL_MAX, f"gpus[{index}].ordinal", "is too large")
        wrong.unless(gpu.memory_bytes >= 0, f"gpus[{index}].memory_bytes", "must be 0 or more")
    wrong.refuse()
    return Sync(
        node_id=derived_id("node", "", request.node_name),
        name=storable(request.node_name),
        incarnation=request.incarnation,
        boot_id=storable(request.boot_id),
        sync_sequence=request.sync_sequence,
        gpus=tuple(_gpu_report(gpu) for gpu in request.gpus),
        leases=_lease_reports(request),
        is_draining=request.is_draining,
    )


def cursor(text: str) -> int:
    """Read where a listing goes on."""
    if not text:
        return 0
    wrong = _Wrong("leases cannot be listed")
    is_number = text.isascii() and text.isdigit() and len(text) <= 18
    wrong.unless(is_number, "cursor", "must be next_cursor of an answer, or empty")
    wrong.refuse()
    return int(text)


def limit(number: int) -> int:
    """Return how many leases a page has."""
    return min(number or PAGE, PAGE_MAX)


def release(request: pb.ReleaseGpuRequest, *, principal: str) -> ReleaseGpu:
    """Read a release from quarantine; raise InvalidArgument with every wrong field."""
    gpu_id = parse_id(request.gpu_id, "gpu")
    wrong = _Wrong("the GPU cannot be released")
    for field, longest in (("reason", REASON_CHARACTERS_MAX), ("request_id", 255)):
        text = getattr(request, field)
        fits = text.strip() and len(text) <= longest and text.isprintable()
        wrong.unless(fits, field, f"must be 1 to {longest} printable characters")
    wrong.refuse()
    return ReleaseGpu(
        request_id=request.request_id, gpu_id=gpu_id, principal=principal, reason=request.reason
    )


def lease(found: Lease) -> pb.Lease:
    """Return a lease as others see it."""
    return pb.Lease(
        lease_id=found.lease_id,
        tenant=found.tenant,
        project=found.project,
        job_id=found.job_id,
        attempt=found.attempt,
        run_id=found.run_id,
        epoch=found.epoch,
        node_id=found.node_id,
        tier=found.tier,
        gpu_count=len(found.ordinals),
        phase=_PHASES[found.phase],
        close_reason=found.close_reason,
        close_message=found.close_message,
        version=found.version,
        grant_time=_timestamp(found.grant_time),
        running_time=_timestamp(found.running_time),
        end_time=_timestamp(found.end_time),
        alive_time=_timestamp(found.alive_time),
        stop_time=_timestamp(found.stop_time),
        funded_until=_timestamp(found.funded_until),
        committed_time=_timestamp(found.committed_time),
        close_time=_timestamp(found.close_time),
    )


def desired(one: Desired) -> pb.DesiredLease:
    """Return what a node should do about a lease."""
    if one.lease is None:
        unknown = pb.Lease(lease_id=one.lease_id, epoch=one.epoch)
        return pb.DesiredLease(lease=unknown, is_fenced=True)
    message = pb.DesiredLease(
        lease=lease(one.lease),
        should_stop=one.should_stop,
        stop_reason=one.lease.stop_reason if one.should_stop else "",
        is_fenced=one.is_fenced,
        ordinals=one.ordinals,
    )
    message.lease.epoch = one.epoch
    message.funded_duration.FromTimedelta(one.lease.funded_duration)
    if one.lease.deadline_duration is not None:
        message.deadline_duration.FromTimedelta(one.lease.deadline_duration)
    return message


def tier(found: TierCapacity) -> pb.Tier:
    """Return a tier with its capacity."""
    return pb.Tier(
        tier=found.tier.tier,
        title=found.tier.title,
        memory_bytes=found.tier.memory_bytes,
        total_count=found.total_count,
        free_count=found.free_count,
        node_count_max=found.node_count_max,
        free_per_node=found.free_per_node,
    )


def node(view: NodeView, *, own: Collection[str]) -> pb.Node:
    """Return a node; of its leases only those in ``own`` are named."""
    return pb.Node(
        node_id=view.node.node_id,
        name=view.node.name,
        is_live=view.is_live,
        gpus=[gpu(one, is_live=view.is_live, own=own) for one in view.gpus],
        sync_time=_timestamp(view.node.sync_time),
    )


def gpu(found: Gpu, *, is_live: bool = True, own: Collection[str] = ()) -> pb.Gpu:
    """Return a GPU; its lease is named only if it is in ``own``."""
    is_gone = found.state is GpuState.FREE and not is_live
    return pb.Gpu(
        gpu_id=found.gpu_id,
        ordinal=found.ordinal,
        tier=found.tier,
        state=_GPU_STATES[GpuState.ABSENT if is_gone else found.state],
        lease_id=found.lease_id if found.lease_id is not None and found.lease_id in own else "",
    )


def held(view: HeldView) -> pb.CheckHeldResponse:
    """Return the comparison of held and used."""
    return pb.CheckHeldResponse(
        held_count=view.check.held_count,
        used_count=view.check.used_count,
        leases=[
            pb.HeldLease(
                lease_id=one.lease_id,
                job_id=one.job_id,
                phase=_PHASES[one.phase],
                gpu_ids=view.gpu_ids.get(one.lease_id, []),
                pids=one.pids,
            )
            for one in view.leases
        ],
        differences=view.check.differences,
        pending_event_count=view.pending_event_count,
    )


def _gpu_report(gpu: pb.GpuReport) -> GpuReport:
    return GpuReport(
        ordinal=gpu.ordinal,
        tier=gpu.tier,
        memory_bytes=gpu.memory_bytes,
        device_id=storable(gpu.device_id),
        is_clear=gpu.is_clear,
        epoch=gpu.epoch,
        is_stuck=gpu.is_stuck,
    )


def _lease_reports(request: pb.SyncNodeRequest) -> tuple[LeaseReport, ...]:
    named = Counter(one.lease_id for one in request.leases)
    found: list[LeaseReport] = []
    for index, one in enumerate(request.leases):
        try:
            found.append(_lease_report(one, is_doubled=named[one.lease_id] > 1))
        except InvalidArgument as refused:
            get_logger().error(
                "lease_report_refused",
                node=request.node_name,
                lease_id=one.lease_id,
                place=index,
                problem=str(refused),
            )
    return tuple(found)


def _lease_report(one: pb.LeaseReport, *, is_doubled: bool) -> LeaseReport:
    """Read what a node says of one lease; raise InvalidArgument with every wrong field."""
    wrong = _Wrong("the report of a lease cannot be read")
    wrong.unless(one.lease_id and "\0" not in one.lease_id, "lease_id", "must be an id")
    wrong.unless(not is_doubled, "lease_id", "must be named once")
    wrong.unless(one.phase in _REPORTED, "phase", f"must be one of {', '.join(_REPORTED.values())}")
    wrong.refuse()
    return LeaseReport(
        lease_id=one.lease_id,
        epoch=one.epoch,
        phase=_REPORTED[one.phase],
        running_age=_optional(one, "running_age"),
        progress_age=_optional(one, "progress_age"),
        end_age=_optional(one, "end_age"),
        committed_age=_optional(one, "committed_age"),
        close_reason=one.close_reason,
        # A trainer's own words, perhaps; it may have written anything.
        close_message=storable(one.close_message),
        pids=tuple(one.pids),
    )


def _optional(message: pb.AcquireRequest | pb.LeaseReport, field: str) -> timedelta | None:
    if not message.HasField(field):  # type: ignore[arg-type]
        return None
    return duration_of(getattr(message, field), field=field)


def _timestamp(instant: datetime | None) -> Timestamp | None:
    if instant is None:
        return None
    message = Timestamp()
    message.FromDatetime(instant)
    return message
