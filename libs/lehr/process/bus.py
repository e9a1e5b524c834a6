"""The NATS side of a process: connects in the background, guards its durables, runs subscribers."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import nats.errors
from nats.aio.client import Client

from lehr.events import connection, streams
from lehr.logs import get_logger
from lehr.settings import PlatformSettings

if TYPE_CHECKING:
    from faststream.nats import NatsRouter

    from lehr.events.subscribers import Consuming, Subscription

CHECK_SECONDS = 5.0
"""How often the durables are compared; nothing else would tell that one was deleted."""


CLOSE_SECONDS = 1.0


class Bus:
    """Keeps one connection for publishing and, where there are subscribers, one for these.

    The process does not depend on it: while NATS is away events wait in the outbox and nothing is
    consumed. A server whose streams differ is refused at the first meeting. When a durable vanishes
    later, the subscribers stop (they would spin), readiness tells, and they go on once it is back.
    """

    def __init__(self, settings: PlatformSettings, *, name: str) -> None:
        self.client = Client()
        self._settings = settings
        self._name = name
        self._durables: list[str] = []
        self._subscriptions: list[Subscription] = []
        self._consuming: Consuming | None = None
        self._complete = asyncio.Event()
        self._met = False
        self._problem: str | None = None
        self._log = get_logger()

    def add_router(self, router: "NatsRouter") -> None:
        """Let the subscribers of ``router`` run.

        Raises:
            ValueError: one of them reads a durable that is not declared, or is twice there.
        """
        # Imported late: a process without subscribers saves 30 MB.
        from lehr.events.subscribers import subscriptions_of  # noqa: PLC0415

        for subscription in subscriptions_of(router):
            self.add_durable(subscription.consumer.name)
            self._subscriptions.append(subscription)

    def add_durable(self, name: str) -> None:
        """Watch over a durable that the service reads without FastStream.

        Raises:
            ValueError: it is not declared, or is watched already.
        """
        if name not in streams.declared().durables or name in self._durables:
            raise ValueError(f"durable {name} must be declared and be read by one subscriber")
        self._durables.append(name)

    def begin(self) -> None:
        """Say that all routers were added."""
        self._complete.set()

    async def problem(self) -> str | None:
        """Return what keeps subscribers from running though NATS is there; a readiness check."""
        return self._problem

    async def run(self) -> None:
        """Connect and, once all routers are there, watch over the streams for ever.

        Raises:
            StreamsDiffer: the server is not as declared at the first meeting.
        """
        await self._connect()
        await self._complete.wait()
        while True:
            if self.client.is_connected:
                await self._look()
            await asyncio.sleep(CHECK_SECONDS if self._problem is None else 1.0)

    async def quiesce(self) -> None:
        """Consume no more; handlers in progress finish first. ``run`` must have been cancelled."""
        await self._stop_consuming()

    async def close(self) -> None:
        """Close the publishing connection, if there ever was one."""
        if self.client.is_closed or not (self.client.is_connected or self.client.is_reconnecting):
            return
        with suppress(nats.errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.client.close()

    async def _connect(self) -> None:
        chosen = connection.options(self._settings, name=self._name)
        while not self.client.is_connected:
            try:
                await self.client.connect(**chosen)
            except (OSError, TimeoutError, nats.errors.Error) as problem:
                self._log.warning("nats_not_connected", error=repr(problem))
                await asyncio.sleep(1.0)
        self._log.info("nats_connected")

    async def _look(self) -> None:
        try:
            await streams.check(self.client, streams.declared(), durables=self._durables)
            self._met = True
            await self._start_consuming()
        except streams.StreamsDiffer as different:
            if not self._met:
                raise
            if self._problem is None:
                self._log.error("streams_differ", differences=different.facts["differences"])
            self._problem = f"streams differ: {different.facts['differences']}"
            await self._stop_consuming()
        except (streams.BrokerRefused, OSError, nats.errors.Error) as problem:
            # An outage that has begun while we looked; the subscribers wait by themselves.
            self._log.warning("streams_not_checked", error=repr(problem))
        else:
            self._problem = None

    async def _start_consuming(self) -> None:
        if self._consuming is not None or not self._subscriptions:
            return
        from lehr.events.subscribers import Consuming  # noqa: PLC0415 - as above.

        self._consuming = Consuming(
            self._settings, self._subscriptions, name=f"{self._name}-subscribers"
        )
        try:
            await self._consuming.start()
        except (OSError, nats.errors.Error):
            await self._stop_consuming()
            raise
        self._log.info("subscribers_started", durables=self._durables)

    async def _stop_consuming(self) -> None:
        consuming, self._consuming = self._consuming, None
        if consuming is not None:
            await consuming.stop()
