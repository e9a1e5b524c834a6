"""Live CloudEvents of one tenant, read straight from the streams."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
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


class EventsUnavailable(Unavailable):
    """The event streams cannot be read now."""

    reason = "EVENTS_UNAVAILABLE"


class Tail:
    """Reads a tenant's events from all streams as they come."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def watch(
        self, tenant: str, *, types: Sequence[str], job_id: str, from_time: datetime | None
    ) -> AsyncIterator[str]:
        """Yield events as JSON, oldest first within a stream.

        Raises:
            EventsUnavailable: NATS is away, or the reader is too slow.
        """
        waiting: asyncio.Queue[Msg] = asyncio.Queue(WAITING_MAX)
        overrun = asyncio.Event()

        async def receive(message: Msg) -> None:
            try:
                waiting.put_nowait(message)
            except asyncio.QueueFull:
                overrun.set()

        subscriptions = await self._subscribe(tenant, receive, from_time)
        try:
            while True:
                if overrun.is_set():
                    raise EventsUnavailable("you read too slowly; begin again from the last time")
                message = await waiting.get()
                if wanted(message.data, types=types, job_id=job_id):
                    yield message.data.decode()
        finally:
            for subscription in subscriptions:
                with suppress(nats.errors.Error, OSError):
                    await subscription.unsubscribe()

    async def _subscribe(self, tenant: str, receive: Any, from_time: datetime | None) -> list[Any]:
        if not self._client.is_connected:
            raise EventsUnavailable("the event streams do not answer; try again in a moment")
        if from_time is None:
            # What is published to a stream is on its subject for plain subscribers as well.
            return [await self._client.subscribe(f"evt.*.*.*.{tenant}.*", cb=receive)]
        js = self._client.jetstream()
        found: list[Any] = []
        for name in streams.declared().streams:
            if name == "DLQ":
                continue
            found.append(
                await js.subscribe(
                    f"evt.*.*.*.{tenant}.*",
                    stream=name,
                    cb=receive,
                    ordered_consumer=True,
                    deliver_policy=DeliverPolicy.BY_START_TIME,
                    config=_since(from_time),
                )
            )
        return found


def wanted(body: bytes, *, types: Sequence[str], job_id: str) -> bool:
    """Return whether an event has one of the types and is about the job; empty means any."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        # One such message must not end every reader's stream.
        return False
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        return False
    if types and not event["type"].startswith(tuple(types)):
        return False
    if not job_id:
        return True
    data = _object(event.get("data"))
    about = (event.get("subject"), data.get("job_id"), _object(data.get("lease")).get("job_id"))
    return job_id in about


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _since(from_time: datetime) -> ConsumerConfig:
    return ConsumerConfig(opt_start_time=from_time)
