"""One service process: connections, servers and loops, from start to an orderly end."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import grpc.aio
from nats.aio.client import Client

from lehr import faults
from lehr.clock import Clock, SystemClock
from lehr.errors import PlatformError, Unavailable
from lehr.events.relay import Relay
from lehr.logs import configure, get_logger
from lehr.postgres import Database
from lehr.process.bus import Bus
from lehr.process.loops import Loop
from lehr.process.probes import Check, Probes
from lehr.rpc import client, tracing
from lehr.rpc.auth import Identity, Verifier
from lehr.rpc.server import Policy, Server
from lehr.settings import ServiceSettings

if TYPE_CHECKING:
    from faststream.nats import NatsRouter

    from lehr.objects import ObjectStore

DEPENDENCY_SECONDS = 60.0
"""How long a starting process waits for Postgres before it gives up."""

GRACE_SECONDS = 5.0
"""What calls and handlers in progress get at the end."""

FLUSH_SECONDS = 1.5
CANCEL_ATTEMPTS = 8


class Process:
    """Builds what a service stands on and takes it down again.

    Entering it connects Postgres, and NATS in the background; ``serve`` runs until SIGTERM or
    SIGINT. Liveness holds from then on whatever is down; readiness needs Postgres and, while NATS
    is there, every durable. A background task that ends by itself ends the process with its error.
    """

    def __init__(self, name: str, settings: ServiceSettings) -> None:
        """Prepare; no input or output yet.

        Raises:
            ValueError: a key is none.
        """
        configure(name, settings.platform.log_format)
        faults.name_process(name)
        self.name = name
        self.clock: Clock = SystemClock()
        self.identity = Identity(name, settings.identity_key.get_secret_value())
        self.port = 0
        """Port of gRPC once ``serve`` has begun; 0 without servicers."""
        self.metrics_port = 0
        """Port of /metrics, /livez and /readyz, once entered."""
        self._settings = settings
        self._verifier = Verifier(settings.platform.trusted_keys)
        self._bus = Bus(settings.platform, name=name)
        self._db: Database | None = None
        self._relay: Relay | None = None
        self._server: Server | None = None
        self._work: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = []
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._checks: dict[str, Check] = {}
        self._probes = Probes(self._checks)
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None
        self._serving = False
        self._log = get_logger()

    @property
    def db(self) -> Database:
        """Postgres of this service, once entered."""
        if self._db is None:
            raise RuntimeError(f"{self.name} has no database, or the process is not entered yet")
        return self._db

    @property
    def nats(self) -> Client:
        """The connection for publishing; it may be disconnected at any time."""
        return self._bus.client

    @cached_property
    def objects(self) -> "ObjectStore":
        """The object store; connects at the first use."""
        from lehr.objects import ObjectStore  # noqa: PLC0415 - most services never need it.

        platform = self._settings.platform
        if platform.s3_access_key is None or platform.s3_secret_key is None:
            raise RuntimeError(f"{self.name} uses the object store without LEHR_S3_* keys")
        return ObjectStore(
            endpoint=platform.s3_endpoint,
            access_key=platform.s3_access_key.get_secret_value(),
            secret_key=platform.s3_secret_key.get_secret_value(),
            bucket=platform.s3_bucket,
            region=platform.s3_region,
        )

    def channel(self, service: str) -> grpc.aio.Channel:
        """Return the channel to another service, always the same one.

        Raises:
            ValueError: LEHR_ADDRESSES does not name it.
        """
        if service not in self._channels:
            address = self._settings.platform.addresses.get(service)
            if address is None:
                raise ValueError(f"LEHR_ADDRESSES must name the address of {service}")
            self._channels[service] = client.channel(address, self.identity)
        return self._channels[service]

    def add_servicer(
        self,
        add: Callable[[Any, Any], None],
        servicer: object,
        *,
        service_name: str,
        policy: Policy,
    ) -> None:
        """Serve a gRPC service; ``policy`` says which services may call which method."""
        if self._server is None:
            reflection = self._settings.platform.mode != "production"
            self._server = Server(self._verifier, reflection=reflection)
        self._server.add_servicer(add, servicer, service_name=service_name, policy=policy)

    def add_router(self, router: "NatsRouter") -> None:
        """Run the durable subscribers of ``router`` whenever NATS is there."""
        self._bus.add_router(router)

    def add_loop(
        self,
        name: str,
        function: Callable[[], Coroutine[Any, Any, None]],
        *,
        every: timedelta,
    ) -> Loop:
        """Call ``function`` every so often while serving; the returned loop can be woken.

        A failed round is logged and followed by a growing pause; the process goes on.
        """
        loop = Loop(name, function, every=every)
        self.add_task(name, loop.run)
        return loop

    def add_durable(self, name: str) -> None:
        """Check a durable that the service reads by itself; it makes readiness and the start."""
        self._bus.add_durable(name)

    def add_task(self, name: str, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``function`` while serving; it ends by cancellation alone.

        If it returns or raises by itself, the process ends with an error.
        """
        self._work.append((name, function))

    def add_check(self, name: str, check: Check) -> None:
        """Make readiness depend on ``check``, which returns None or what is wrong."""
        self._checks[name] = check

    def stop(self) -> None:
        """Ask ``serve`` to return; what SIGTERM does."""
        self._ended.set()

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            Unavailable: no Postgres within a minute.
            OSError: the address for metrics cannot be bound.
        """
        platform = self._settings.platform
        if platform.otlp_endpoint:
            tracing.export(self.name, platform.otlp_endpoint)
        self._checks["serving"] = self._is_serving
        self._checks["subscribers"] = self._bus.problem
        try:
            self.metrics_port = await self._probes.start(self._settings.metrics_listen)
            self._watch = self._spawn("bus", self._bus.run())
            if self._settings.database_url is not None:
                url = self._settings.database_url.get_secret_value()
                self._db = await _connected(url)
                self._checks["postgres"] = self._postgres_problem
                self._relay = Relay(self._db, self._bus.client)
                self._spawn("relay", self._relay.run())
        except BaseException:
            await self._take_down()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._take_down()

    async def serve(self) -> None:
        """Run until SIGTERM, SIGINT or ``stop``.

        Raises:
            StreamsDiffer: the streams of the NATS server are not the declared ones.
            Exception: whatever ended a background task.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        if self._server is not None:
            self.port = await self._server.start(self._settings.listen)
        self._bus.begin()
        for name, function in self._work:
            self._spawn(name, function())
        self._serving = True
        self._log.info("serving", port=self.port, metrics_port=self.metrics_port)
        await self._ended.wait()
        self._serving = False
        self._log.info("stopping", failed=self._failure is not None)
        if self._failure is not None:
            raise self._failure

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)
        return task

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception() or RuntimeError(f"{task.get_name()} has ended by itself")
        expected = isinstance(error, PlatformError)
        self._log.error("task_ended", task=task.get_name(), exc_info=None if expected else error)
        self._failure = self._failure or error
        self._ended.set()

    async def _is_serving(self) -> str | None:
        return None if self._serving else "starting or stopping"

    async def _postgres_problem(self) -> str | None:
        return None if await self.db.is_ready() else "no answer"

    async def _take_down(self) -> None:
        """End everything in the order in which nothing is cut off; takes under 10 s."""
        self._serving = False
        # The bus first, which could start what is about to be stopped.
        await _cancel(task for task in self._tasks if task is self._watch)
        accepting = [self._bus.quiesce()]
        if self._server is not None:
            accepting.append(self._server.stop(grace=GRACE_SECONDS))
        await asyncio.gather(*accepting)
        await _cancel(self._tasks)
        if self._relay is not None:
            with suppress(PlatformError, TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._relay.flush()
        await self._bus.close()
        for channel in self._channels.values():
            await channel.close(grace=None)
        if self._db is not None:
            await self._db.close(timeout=1)
        await self._probes.stop()


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    pending = set(tasks)
    # More than once: nats-py 2.16 swallows a cancellation that meets it in a flush or a close.
    for _ in range(CANCEL_ATTEMPTS):
        if not pending:
            return
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.3)


async def _connected(url: str) -> Database:
    """Open the database, waiting for a server that is only starting."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + DEPENDENCY_SECONDS
    while True:
        try:
            return await Database.connect(url)
        except Unavailable:
            if loop.time() > give_up_at:
                raise
            await asyncio.sleep(0.2)
