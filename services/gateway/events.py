"""Live CloudEvents of one tenant, read straight from the streams."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, DeliverPolicy

from lehr.errors import Unavailable
from lehr.events import streams

WAITING_MAX = 2_000
"""Events kept for a slow reader; a slower one is told to come back."""

Shows = Callable[[Mapping[str, Any]], Awaitable[bool]]
"""Says of an event whether the reader may see it."""


class EventsUnavailable(Unavailable):
    """The event streams cannot be read now."""

    reason = "EVENTS_UNAVAILABLE"


class Tail:
    """Reads a tenant's events from all streams as they come."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def watch(
        self,
        tenant: str,
        *,
        types: Sequence[str],
        job_id: str,
        from_time: datetime | None,
        shows: Shows,
    ) -> AsyncIterator[str]:
        """Yield events as JSON, oldest first within a stream.

        Raises:
            EventsUnavailable: NATS is away, or the reader is too slow.
            Unavailable: it cannot be told now whether the reader may see an event.
        """
        waiting: asyncio.Queue[Msg] = asyncio.Queue(WAITING_MAX)
        overrun = asyncio.Event()

        async def receive(message: Msg) -> None:
            try:
                waiting.put_nowait(message)
            except asyncio.QueueFull:
                overrun.set()

        subscriptions: list[Any] = []
        try:
            try:
                await self._subscribe(subscriptions, tenant, receive, from_time)
            except (nats.errors.Error, OSError):
                raise EventsUnavailable("the event streams cannot be read now; try again") from None
            while True:
                if overrun.is_set():
                    raise EventsUnavailable("you read too slowly; begin again from the last time")
                message = await waiting.get()
                event = wanted(message.data, types=types, job_id=job_id)
                if event is not None and await shows(event):
                    yield message.data.decode()
        finally:
            for subscription in subscriptions:
                with suppress(nats.errors.Error, OSError):
                    await subscription.unsubscribe()

    async def _subscribe(
        self, made: list[Any], tenant: str, receive: Any, from_time: datetime | None
    ) -> None:
        """Add every subscription to ``made`` at once: one that fails must not hide the others."""
        if not self._client.is_connected:
            raise EventsUnavailable("the event streams do not answer; try again in a moment")
        if from_time is None:
            # What is published to a stream is on its subject for plain subscribers as well.
            made.append(await self._client.subscribe(f"evt.*.*.*.{tenant}.*", cb=receive))
            return
        js = self._client.jetstream()
        for name in streams.declared().streams:
            if name == "DLQ":
                continue
            made.append(
                await js.subscribe(
                    f"evt.*.*.*.{tenant}.*",
                    stream=name,
                    cb=receive,
                    ordered_consumer=True,
                    deliver_policy=DeliverPolicy.BY_START_TIME,
                    config=_since(from_time),
                )
            )


def wanted(body: bytes, *, types: Sequence[str], job_id: str) -> dict[str, Any] | None:
    """Return an event that has one of the types and is about the job; empty means any."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        # One such message must not end every reader's stream.
        return None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        return None
    if types and not event["type"].startswith(tuple(types)):
        return None
    if not job_id:
        return event
    data = _object(event.get("data"))
    about = (event.get("subject"), data.get("job_id"), _object(data.get("lease")).get("job_id"))
    return event if job_id in about else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _since(from_time: datetime) -> ConsumerConfig:
    return ConsumerConfig(opt_start_time=from_time)
