"""Pulls a declared durable in batches: one transaction a batch, acknowledged after its commit."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from lehr import faults
from lehr.errors import PlatformError
from lehr.events import streams
from lehr.events.subscribers import HANDLER_SECONDS, Consumer
from lehr.logs import get_logger, metrics

M = TypeVar("M")

BATCH = 32
"""Messages of one transaction; each holds up to about 200 points, or 1 MiB of lines."""

IDLE_SECONDS = 5.0
"""How long one question for a message waits at the server."""

GATHER_SECONDS = 0.03
"""How long to wait for more messages when there is one."""

RETRY = timedelta(seconds=1)
"""How often a batch is tried again while the database is away; below ack_wait."""

CONNECT_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake(Generic[M]):
    """What becomes of a durable's messages."""

    durable: str
    stream: str
    read: Callable[[bytes], M]
    """Body to message; raises for what can never be read."""
    store: Callable[[Sequence[M]], Awaitable[list[PlatformError | None]]]
    """Store messages in one transaction; one verdict a message."""
    before_ack: str
    """Name of a fault point."""


class Puller(Generic[M]):
    """Feeds one intake for ever, whatever is down meanwhile."""

    def __init__(self, intake: Intake[M], client: Client) -> None:
        """``client`` may be disconnected now and at any time."""
        self._intake = intake
        self._client = client
        self._single = Consumer(intake.durable, self._store_one, timeout_seconds=HANDLER_SECONDS)
        self._met = False
        self._problem: str | None = "has not met its stream yet"
        self._log = get_logger()

    async def problem(self) -> str | None:
        """Return what keeps messages from being read though NATS is there; a readiness check."""
        return self._problem if self._met and self._client.is_connected else None

    async def run(self) -> None:
        """Pull until cancelled.

        Raises:
            StreamsDiffer: the server is not as declared at the first meeting.
        """
        while True:
            if not self._client.is_connected:
                await asyncio.sleep(CONNECT_SECONDS)
                continue
            try:
                await self._pull()
            except streams.StreamsDiffer as different:
                if not self._met:
                    raise
                self._problem = f"streams differ: {different.facts['differences']}"
                self._log.error("streams_differ", differences=different.facts["differences"])
            except (OSError, nats.errors.Error, streams.BrokerRefused) as problem:
                self._log.warning(
                    "pull_interrupted", consumer=self._intake.durable, error=repr(problem)
                )
            await asyncio.sleep(RETRY.total_seconds())

    async def _pull(self) -> None:
        intake = self._intake
        await streams.check(self._client, streams.declared(), durables=[intake.durable])
        self._met, self._problem = True, None
        context = self._client.jetstream()
        subscription = await context.pull_subscribe_bind(intake.durable, stream=intake.stream)
        try:
            while self._client.is_connected:
                if batch := await _next_batch(subscription):
                    await self._take(batch)
        finally:
            if self._client.is_connected:
                await subscription.unsubscribe()

    async def _take(self, batch: list[Msg]) -> None:
        """Store a batch as a whole; what does not fit in is judged message by message."""
        readable: list[tuple[Msg, M]] = []
        others: list[Msg] = []
        for message in batch:
            try:
                readable.append((message, self._intake.read(message.data)))
            except Exception:  # judged below, like whatever else a single message does.
                others.append(message)
        stored: list[Msg] = []
        for (message, _), refused in zip(readable, await self._verdicts(readable), strict=True):
            (others if refused else stored).append(message)
        await faults.hit(self._intake.before_ack)
        for message in stored:
            await message.ack()
        metrics.add("events_handled", len(stored), consumer=self._intake.durable, outcome="done")
        for message in others:
            await self._single.take(message)

    async def _verdicts(self, readable: Sequence[tuple[Msg, M]]) -> Sequence[Exception | None]:
        """Store, for as long as it takes; an outage of the database is nobody's dead letter."""
        while readable:
            try:
                return await self._intake.store([message for _, message in readable])
            except PlatformError as problem:
                if not problem.retryable:
                    return [problem] * len(readable)
                self._log.warning(
                    "batch_retried", consumer=self._intake.durable, reason=problem.reason
                )
            except Exception as problem:  # one of them breaks us; alone it cannot stop the others.
                self._log.exception("batch_failed", consumer=self._intake.durable)
                return [problem] * len(readable)
            for message, _ in readable:
                await message.in_progress()
            await asyncio.sleep(RETRY.total_seconds())
        return []

    async def _store_one(self, body: bytes) -> None:
        [refused] = await self._intake.store([self._intake.read(body)])
        if refused is not None:
            raise refused


async def _next_batch(subscription: JetStreamContext.PullSubscription) -> list[Msg]:
    """Wait for a message, then take what else is there; empty after a while without any."""
    # The client raises a TimeoutError of its own or, at times, the built-in one.
    try:
        batch = await subscription.fetch(1, timeout=IDLE_SECONDS)
    except TimeoutError:
        return []
    with suppress(TimeoutError):
        batch += await subscription.fetch(BATCH - 1, timeout=GATHER_SECONDS)
    return batch
