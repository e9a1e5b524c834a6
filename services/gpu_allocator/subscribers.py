"""NATS in: a stop that the scheduler tells of reaches its lease at once, not at the next retry."""

from faststream.nats import NatsRouter

from lehr.errors import InvalidArgument
from lehr.events import codec
from lehr.events.job import JobStopping
from lehr.events.subscribers import durable
from lehr.postgres import Database
from lehr.training.ends import RunEnd
from services.gpu_allocator.handlers import leases
from services.gpu_allocator.handlers.leases import Delivery, StopLease

STOP_JOB = "allocator-job"


def subscribers(db: Database) -> NatsRouter:
    """Return the durable consumers of this service."""
    router = NatsRouter()

    @durable(router, STOP_JOB, stream="JOBS", subject="evt.job.stopping.>")
    async def stop_lease(body: bytes) -> None:
        event = codec.decode(body, JobStopping)
        if not event.data.lease_id:
            return
        command = StopLease(
            lease_id=event.data.lease_id,
            tenant=event.tenant,
            stop_time=event.data.stop_time,
            reason=_run_end(event.data.reason),
        )
        delivery = Delivery(consumer=STOP_JOB, event_id=event.event_id)
        await leases.request_stop(command, db=db, delivery=delivery)

    return router


def _run_end(word: str) -> RunEnd:
    try:
        return RunEnd(word)
    except ValueError:
        message = f"{word[:80]!r} is no reason to end a run that this version knows"
        raise InvalidArgument(message, reason="RUN_END_UNKNOWN", word=word[:80]) from None
