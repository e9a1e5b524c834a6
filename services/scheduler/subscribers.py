"""Events in: what leases and runs say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from faststream.nats import NatsRouter

from lehr.events import codec
from lehr.events.base import number_to_json
from lehr.events.envelope import Envelope
from lehr.events.errors import MalformedEvent
from lehr.events.lease import LeaseClosed, LeaseEvent, LeaseGranted, LeasePhaseChanged
from lehr.events.run import RunEvaluated, RunProgressed
from lehr.events.subscribers import durable
from services.scheduler.domain.progress import Evaluated, Stepped
from services.scheduler.domain.run import Lease, LeasePhase
from services.scheduler.handlers.runs import Delivery, advance_run
from services.scheduler.ports import Ports
from services.scheduler.storage import progress

LEASE_DURABLE = "scheduler-lease"
RUN_DURABLE = "scheduler-run"

LEASE_EVENTS: Mapping[str, type[LeaseEvent]] = {
    model.type_name(): model for model in (LeaseGranted, LeasePhaseChanged, LeaseClosed)
}


def subscribers(ports: Ports) -> NatsRouter:
    """Return the scheduler's consumers."""
    router = NatsRouter()

    @durable(router, LEASE_DURABLE, stream="LEASES", subject="evt.lease.>")
    async def lease_said(body: bytes) -> None:
        await take_lease(body, ports=ports)

    @durable(router, RUN_DURABLE, stream="RUNS", subject="evt.run.progressed.>", at_once=16)
    async def run_said(body: bytes) -> None:
        await take_report(body, ports=ports)

    return router


async def take_lease(body: bytes, *, ports: Ports) -> None:
    """Advance the run whose lease changed; twice, late and out of order are all the same."""
    type_name = codec.peek(body)["type"]
    model = LEASE_EVENTS.get(type_name)
    if model is None:
        raise MalformedEvent(f"{type_name} is no event about a lease", type=type_name)
    envelope = codec.decode(body, model)
    delivery = Delivery(consumer=LEASE_DURABLE, event_id=envelope.event_id)
    await advance_run(_lease(envelope), ports=ports, delivery=delivery)


async def take_report(body: bytes, *, ports: Ports) -> None:
    """Note how far a run is. Its place in the run's reports guards it, so there is no inbox."""
    type_name = codec.peek(body)["type"]
    if type_name == RunProgressed.type_name():
        steps = codec.decode(body, RunProgressed)
        if steps.data.points:
            async with ports.db.transaction() as conn:
                await progress.save_steps(conn, steps.tenant, _stepped(steps.data))
        return
    evaluation = codec.decode(body, RunEvaluated)
    async with ports.db.transaction() as conn:
        await progress.save_evaluation(conn, evaluation.tenant, _evaluated(evaluation.data))


def _lease(envelope: Envelope[Any]) -> Lease:
    told = envelope.data.lease
    try:
        phase = LeasePhase(told.phase)
    except ValueError:
        raise MalformedEvent(f"{told.phase!r} is no phase of a lease", phase=told.phase) from None
    return Lease(
        lease_id=told.lease_id,
        tenant=envelope.tenant,
        project=told.project,
        job_id=told.job_id,
        run_id=told.run_id,
        attempt=told.attempt,
        epoch=told.epoch,
        tier=told.tier,
        phase=phase,
        version=envelope.sequence,
        close_reason=told.close_reason,
        close_message=told.close_message,
        running_time=told.running_time,
    )


def _stepped(told: RunProgressed) -> Stepped:
    newest = told.points[-1]
    return Stepped(
        run_id=told.run_id,
        epoch=told.epoch,
        sequence=told.last_sequence,
        step=newest.step,
        total_steps=told.total_steps,
        remaining_seconds=told.remaining_seconds,
        values={name: _text(value) for name, value in newest.values.items()},
    )


def _evaluated(told: RunEvaluated) -> Evaluated:
    eval_loss = _text(told.eval_loss)
    is_baseline = told.step == 0 and isinstance(number_to_json(told.eval_loss), float)
    return Evaluated(
        run_id=told.run_id,
        epoch=told.epoch,
        sequence=told.report_sequence,
        eval_loss=eval_loss,
        baseline_loss=told.eval_loss if is_baseline else None,
        best_step=told.best_step,
        best_loss=told.best_loss,
    )


def _text(value: float) -> str:
    told = number_to_json(value)
    return told if isinstance(told, str) else repr(told)
