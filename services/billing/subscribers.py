"""NATS in: one function a durable consumer."""

from faststream.nats import NatsRouter

from lehr.events import codec
from lehr.events.envelope import Envelope
from lehr.events.errors import MalformedEvent
from lehr.events.job import JobFinished
from lehr.events.lease import LeaseClosed, LeaseEvent, LeaseGranted, LeasePhaseChanged
from lehr.events.subscribers import durable
from lehr.postgres import Database
from services.billing.domain.commands import Delivery
from services.billing.domain.holds import Rest
from services.billing.domain.lease import Lease, LeasePhase
from services.billing.handlers import metering, settling
from services.billing.ports import Leases

LEASE_DURABLE = "billing-lease"
JOB_DURABLE = "billing-job"

_LEASE_EVENTS: dict[str, type[LeaseEvent]] = {
    model.type_name(): model for model in (LeaseGranted, LeasePhaseChanged, LeaseClosed)
}


def subscribers(db: Database, leases: Leases) -> NatsRouter:
    """Return the durable consumers of this service."""
    router = NatsRouter()

    @durable(router, LEASE_DURABLE, stream="LEASES", subject="evt.lease.>")
    async def meter_lease(body: bytes) -> None:
        event = _lease_event(body)
        delivery = Delivery(consumer=LEASE_DURABLE, event_id=event.event_id)
        lease = _lease(event)
        job = await metering.meter_lease(lease, delivery, db=db)
        if job is not None and not lease.is_open and job.rest.is_resting:
            await settling.try_to_settle(job, db=db, leases=leases)

    @durable(router, JOB_DURABLE, stream="JOBS", subject="evt.job.finished.>")
    async def settle_job(body: bytes) -> None:
        event = codec.decode(body, JobFinished)
        job = await settling.job_finished(
            event.tenant,
            event.data.job_id,
            Rest(version=event.sequence, is_resting=True, change_time=event.data.finish_time),
            Delivery(consumer=JOB_DURABLE, event_id=event.event_id),
            db=db,
        )
        if job is not None:
            await settling.try_to_settle(job, db=db, leases=leases)

    return router


def _lease_event(body: bytes) -> Envelope[LeaseEvent]:
    type_name = codec.peek(body)["type"]
    model = _LEASE_EVENTS.get(type_name)
    if model is None:
        raise MalformedEvent(f"{type_name} is no event about a lease", type=type_name)
    return codec.decode(body, model)


def _lease(event: Envelope[LeaseEvent]) -> Lease:
    told = event.data.lease
    try:
        phase = LeasePhase(told.phase)
    except ValueError:
        raise MalformedEvent(
            f"lease {told.lease_id} is in the unknown phase {told.phase[:40]!r}",
            lease_id=told.lease_id,
        ) from None
    return Lease(
        lease_id=told.lease_id,
        tenant=event.tenant,
        project=told.project,
        job_id=told.job_id,
        attempt=told.attempt,
        epoch=told.epoch,
        tier=told.tier,
        gpu_count=told.gpu_count,
        phase=phase,
        close_reason=told.close_reason,
        version=event.sequence,
        grant_time=told.grant_time,
        running_time=told.running_time,
        end_time=told.end_time,
        alive_time=told.alive_time,
        stop_time=told.stop_time,
        funded_until=told.funded_until,
        committed_time=told.committed_time,
    )
