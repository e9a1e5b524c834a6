"""Durable subscribers over FastStream: pull, manual ack, growing waits and dead letters."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import nats.errors
import structlog
from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, NatsMessage, NatsRouter, PullSub
from faststream.security import SASLPlaintext
from nats.aio.client import Client
from nats.aio.msg import Msg
from opentelemetry.trace import SpanKind

from lehr import faults
from lehr.errors import InvalidArgument
from lehr.events import codec, connection
from lehr.events.outcome import DELIVERIES_MAX, Park, Retry, after_failure
from lehr.logs import get_logger, metrics
from lehr.rpc.auth import acting_for
from lehr.rpc.tracing import traced
from lehr.settings import PlatformSettings

Handler = Callable[[bytes], Awaitable[None]]

HANDLER_SECONDS = 20.0
"""Longest that a handler may take; below ack_wait, so that no second one starts beside it."""

PARKED_PER_MINUTE = 100
"""Dead letters beyond this point to a fault of ours; messages then wait instead."""

GRACE_SECONDS = 4.0
"""What handlers in progress get when the process ends."""

START_SECONDS = 15.0

_FETCH_SECONDS = 2.0
_WHEN_TOO_MANY = Retry(delay=timedelta(minutes=5))


def durable(
    router: NatsRouter | NatsBroker,
    name: str,
    *,
    stream: str,
    subject: str,
    at_once: int = 1,
    timeout_seconds: float = HANDLER_SECONDS,
) -> Callable[[Handler], Handler]:
    """Let a function handle the messages of a declared durable consumer.

    The function gets the body, and runs in the trace and for the tenant of the event. Returning
    acks; after an exception the message comes again after 1, 2, 5, 10, 30, 60, 300 s, and goes to
    ``dlq.<name>`` when it can never succeed or at its 20th failure. It may be called twice with the
    same event and, with ``at_once`` above 1 or after a failure, out of order.

    ``subject`` must be what deploy/nats/streams.yaml declares or a part of it; it filters nothing.
    """

    def register(handler: Handler) -> Handler:
        subscription = Subscription(
            stream=stream,
            subject=subject,
            at_once=at_once,
            consumer=Consumer(name, handler, timeout_seconds=timeout_seconds),
        )
        _attach(router, subscription)
        _REGISTERED.setdefault(router, []).append(subscription)
        return handler

    return register


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A durable with its handler, apart from any connection."""

    stream: str
    subject: str
    at_once: int
    consumer: "Consumer"


#: What was registered on a router: a broker cannot be trusted after a failed start or stop (it
#: keeps half of its subscriptions), so each start needs a new one.
_REGISTERED: WeakKeyDictionary[NatsRouter | NatsBroker, list[Subscription]] = WeakKeyDictionary()


def subscriptions_of(router: NatsRouter | NatsBroker) -> list[Subscription]:
    """Return what :func:`durable` registered on ``router``."""
    return list(_REGISTERED.get(router, ()))


class Consuming:
    """Subscriptions at work on a connection of their own, from ``start`` to ``stop``."""

    def __init__(
        self, settings: PlatformSettings, subscriptions: Iterable[Subscription], *, name: str
    ) -> None:
        self._broker = _broker(settings, name=name)
        self._connection: Client | None = None
        for subscription in subscriptions:
            _attach(self._broker, subscription)

    async def start(self) -> None:
        """Connect and consume; after a failure ``stop`` must still be called.

        Raises:
            TimeoutError, nats.errors.Error, OSError: no server, or lost meanwhile.
        """
        async with asyncio.timeout(START_SECONDS):
            self._connection = await self._broker.connect()
            await self._broker.start()

    async def stop(self) -> None:
        """Let handlers in progress finish, then disconnect; never raises for a lost server."""
        # Draining raises while NATS is away; there is then nothing to drain.
        lost = (nats.errors.Error, OSError, ExceptionGroup)
        with suppress(*lost):
            async with asyncio.timeout(GRACE_SECONDS + 1):
                await self._broker.stop()
        if self._connection is not None:
            with suppress(*lost):
                await self._connection.close()


def _attach(router: NatsRouter | NatsBroker, subscription: Subscription) -> None:
    consumer = subscription.consumer

    @router.subscriber(
        subscription.subject,
        durable=consumer.name,
        stream=JStream(subscription.stream, declare=False),
        pull_sub=PullSub(batch_size=subscription.at_once, timeout=_FETCH_SECONDS),
        ack_policy=AckPolicy.MANUAL,
        decoder=_undecoded,
        no_reply=True,
        title=consumer.name,
    )
    async def consume(message: NatsMessage) -> None:
        await consumer.take(message.raw_message)


def _broker(settings: PlatformSettings, *, name: str) -> NatsBroker:
    chosen = connection.options(settings, name=name)
    user, password = chosen.pop("user", None), chosen.pop("password", None)
    security = None
    if user is not None:
        security = SASLPlaintext(username=user, password=password or "", use_ssl=False)
    # Its own logger would tell every message twice.
    return NatsBroker(**chosen, security=security, graceful_timeout=GRACE_SECONDS, logger=None)


class Consumer:
    """One durable's handler with everything around it; does not know FastStream."""

    def __init__(self, name: str, handler: Handler, *, timeout_seconds: float) -> None:
        self.name = name
        self._handler = handler
        self._timeout_seconds = timeout_seconds
        self._parked_at: deque[float] = deque(maxlen=PARKED_PER_MINUTE)
        self._log = get_logger()

    async def take(self, message: Msg) -> None:
        """Handle one message and settle it; never raises for what the handler did."""
        delivery, began = message.metadata.num_delivered or 1, monotonic()
        with structlog.contextvars.bound_contextvars(consumer=self.name):
            try:
                # A message that killed its consumer again and again never got as far as settling.
                if delivery > DELIVERIES_MAX:
                    verdict: Retry | Park | None = Park(reason="DELIVERED_TOO_OFTEN")
                else:
                    verdict = await self._handle(message, delivery)
                outcome = await self._settle(message, verdict)
                metrics.add("events_handled", consumer=self.name, outcome=outcome)
            except Exception as problem:
                # The edge of the process for this message: it stays unacked and comes again.
                self._log.warning("message_not_settled", error=repr(problem))
        metrics.observe("event_handling_seconds", monotonic() - began, consumer=self.name)

    async def _handle(self, message: Msg, delivery: int) -> Retry | Park | None:
        try:
            header = codec.peek(message.data)
            event_id, tenant = header["id"], header["tenant"]
            with (
                structlog.contextvars.bound_contextvars(event_id=event_id, type=header["type"]),
                traced(self.name, kind=SpanKind.CONSUMER, traceparent=header.get("traceparent")),
                acting_for(tenant),
            ):
                async with asyncio.timeout(self._timeout_seconds):
                    await self._handler(message.data)
        except Exception as error:  # the edge: whatever a handler raises is judged here.
            verdict = after_failure(error, delivery=delivery)
            parked = isinstance(verdict, Park)
            self._log.log(
                40 if parked else 30,
                "event_parked" if parked else "event_retried",
                subject=message.subject,
                delivery=delivery,
                exc_info=not isinstance(error, InvalidArgument),
                **_as_fields(verdict),
            )
            return verdict
        return None

    async def _settle(self, message: Msg, verdict: Retry | Park | None) -> str:
        """Ack, nak or park; return the outcome's name in the metrics."""
        if verdict is None:
            await faults.hit("subscriber.before_ack")
            await message.ack()
            return "done"
        if isinstance(verdict, Park) and self._too_many_parked():
            self._log.error("dead_letters_flood", limit_per_minute=PARKED_PER_MINUTE)
            verdict = _WHEN_TOO_MANY
        if isinstance(verdict, Retry):
            await message.nak(delay=verdict.delay.total_seconds())
            return "again"
        await self._park(message, verdict)
        await message.term()
        return "dead"

    async def _park(self, message: Msg, verdict: Park) -> None:
        metadata = message.metadata
        stream_sequence = metadata.sequence.stream
        headers = {
            # Parking twice, because the term was lost, leaves one dead letter.
            "Nats-Msg-Id": f"{self.name}:{metadata.stream}:{stream_sequence}",
            "content-type": codec.CONTENT_TYPE,
            "Lehr-Reason": verdict.reason,
            "Lehr-Subject": message.subject,
            "Lehr-Stream": metadata.stream,
            "Lehr-Stream-Sequence": str(stream_sequence),
            "Lehr-Delivery": str(metadata.num_delivered),
        }
        stream = message._client.jetstream()
        await stream.publish(f"dlq.{self.name}", message.data, timeout=5, headers=headers)
        self._parked_at.append(monotonic())
        metrics.add("dead_letters", consumer=self.name)

    def _too_many_parked(self) -> bool:
        full = len(self._parked_at) == PARKED_PER_MINUTE
        return full and monotonic() - self._parked_at[0] < 60


async def _undecoded(message: Any) -> Any:
    """Leave the body alone; the default decoder would guess from the headers."""
    return message.body


def _as_fields(verdict: Retry | Park) -> dict[str, Any]:
    match verdict:
        case Park(reason=reason):
            return {"reason": reason}
        case Retry(delay=delay):
            return {"delay_seconds": delay.total_seconds()}
