"""The public port: authenticates a call and forwards its bytes to the service that serves it.

Requests and responses are not decoded. A call may be unary or a stream; on the wire a unary call is
a stream of one message, so one handler serves both. A stream lives no longer than its key.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import grpc.aio

from lehr.errors import InvalidArgument, PlatformError, Unavailable
from lehr.ids import event_uuid
from lehr.logs import get_logger
from lehr.rpc.auth import TOKEN_KEY, ActingFor, Identity
from lehr.rpc.client import CHANNEL_OPTIONS
from lehr.rpc.context import REQUEST_ID_KEY, TRACEPARENT_KEY
from lehr.rpc.server import SERVER_OPTIONS
from lehr.rpc.translate import DETAILS_KEY, INTERNAL_MESSAGE, code_of, status_of
from services.gateway.calls import Limits, streaming_paths
from services.gateway.domain.keys import ApiKey, KeyRefused
from services.gateway.handlers import KeyRing

#: gRPC services that outside callers reach, and the process that serves each.
ROUTES: Mapping[str, str] = {
    "lehr.api.scheduler.v1.SchedulerService": "scheduler",
    "lehr.api.gpu_allocator.v1.GpuAllocatorService": "gpu_allocator",
    "lehr.api.checkpoint_store.v1.CheckpointStoreService": "checkpoint_store",
    "lehr.api.billing.v1.BillingService": "billing",
    "lehr.api.telemetry.v1.TelemetryService": "telemetry",
    "lehr.api.catalog.v1.CatalogService": "catalog",
    "lehr.api.gateway.v1.GatewayService": "gateway",
}

REQUEST_BYTES_MAX = (1024 + 64) * 1024
"""Largest request from outside: a chunk of an upload is 1 MiB and a few bytes. Answers, and what
services tell each other, may be larger."""

PUBLIC_OPTIONS = (
    *(option for option in SERVER_OPTIONS if option[0] != "grpc.max_receive_message_length"),
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
)

LOOK_AGAIN_SECONDS_MIN = 0.5
"""Least time between two looks at the key of a stream."""

_PASSED_ON = (REQUEST_ID_KEY, TRACEPARENT_KEY)

Context = Any  # grpc.aio.ServicerContext, which is generic in its stubs alone.
Metadata = dict[str, Any]


class ServiceUnknown(InvalidArgument):
    """No service of that name is reached from outside."""

    reason = "SERVICE_UNKNOWN"


class ServiceAway(Unavailable):
    """The service behind the gateway does not answer."""

    reason = "SERVICE_AWAY"


class Proxy(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Serves every method of every service in ROUTES by forwarding it."""

    def __init__(
        self,
        ring: KeyRing,
        identity: Identity,
        address_of: Callable[[str], str],
        *,
        limits: Limits,
    ) -> None:
        self._ring = ring
        self._limits = limits
        self._streaming = streaming_paths(ROUTES)
        self._identity = identity
        self._address_of = address_of
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._log = get_logger()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of one call; gRPC asks for it by path."""
        path: str = handler_call_details.method
        metadata: Metadata = dict(handler_call_details.invocation_metadata or ())

        # Written and not yielded: the end of its key must reach a stream while it waits to be read.
        async def forward(requests: Any, context: Context) -> None:
            try:
                await self._forward(path, metadata, requests, context)
            except grpc.aio.AioRpcError as error:
                # A service said no; its words and details go on unchanged.
                trailing: Any = error.trailing_metadata() or ()
                details = tuple((name, value) for name, value in trailing if name == DETAILS_KEY)
                if error.code() is grpc.StatusCode.UNAVAILABLE and not details:
                    # No service said that; gRPC's own text holds addresses of the inside.
                    await _abort(context, _away(path))
                await context.abort(error.code(), error.details() or "", details)
            except PlatformError as error:
                await _abort(context, error)
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # the edge: no text of ours may leak to a caller.
                self._log.error("forwarding_failed", method=path, exc_info=error)
                await context.abort(grpc.StatusCode.INTERNAL, INTERNAL_MESSAGE)

        return grpc.stream_stream_rpc_method_handler(forward)

    async def close(self) -> None:
        """Close the channels to the services."""
        for channel in self._channels.values():
            await channel.close(None)

    async def _forward(
        self, path: str, metadata: Metadata, requests: Any, context: Context
    ) -> None:
        authorization = metadata.get("authorization")
        key = await self._ring.resolve(authorization)
        service, _, _ = path.removeprefix("/").rpartition("/")
        name = ROUTES.get(service)
        if name is None:
            raise ServiceUnknown(f"there is no service {service}", service=service)
        method = self._channel(name).stream_stream(path, _same, _same)
        with self._limits.one(key.key_id, is_stream=path in self._streaming):
            async with self._while_it_works(authorization):
                call = method(
                    requests,
                    timeout=context.time_remaining(),
                    metadata=self._metadata(key, metadata),
                )
                try:
                    async for answer in call:
                        await context.write(answer)
                finally:
                    call.cancel()

    @asynccontextmanager
    async def _while_it_works(self, authorization: str | None) -> AsyncIterator[None]:
        """End the block with KeyRefused when its key is revoked or expires.

        A key that cannot be looked up now is believed until it can.
        """
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        refused: list[KeyRefused] = []

        async def look() -> None:
            while not refused:
                await asyncio.sleep(max(self._ring.cache_seconds, LOOK_AGAIN_SECONDS_MIN))
                try:
                    await self._ring.resolve(authorization)
                except KeyRefused as refusal:
                    refused.append(refusal)
                except Unavailable:
                    continue
            task.cancel()

        looking = asyncio.create_task(look(), name="look at the key again")
        try:
            yield
        except asyncio.CancelledError:
            if not refused:
                raise
            task.uncancel()
            raise refused[0] from None
        finally:
            looking.cancel()

    def _metadata(self, key: ApiKey, metadata: Metadata) -> tuple[tuple[str, str], ...]:
        acting = ActingFor(
            principal=key.key_id, tenant=key.tenant, project=key.project, role=key.role
        )
        passed = {name: metadata[name] for name in _PASSED_ON if name in metadata}
        passed.setdefault(REQUEST_ID_KEY, f"req_{event_uuid().hex}")
        return ((TOKEN_KEY, self._identity.token(acting)), *passed.items())

    def _channel(self, name: str) -> grpc.aio.Channel:
        if name not in self._channels:
            self._channels[name] = grpc.aio.insecure_channel(
                self._address_of(name), options=CHANNEL_OPTIONS
            )
        return self._channels[name]


async def _abort(context: Context, error: PlatformError) -> None:
    status = status_of(error)
    await context.abort(
        code_of(error), status.message, ((DETAILS_KEY, status.SerializeToString()),)
    )


def _away(path: str) -> ServiceAway:
    name = ROUTES[path.removeprefix("/").rpartition("/")[0]]
    return ServiceAway(f"the {name} does not answer; try again in a moment", service=name)


def _same(body: bytes) -> bytes:
    return body


class PublicServer:
    """The port for outside callers."""

    def __init__(self, proxy: Proxy, *, reflection: bool) -> None:
        self._proxy = proxy
        self._server = grpc.aio.server(options=PUBLIC_OPTIONS)
        if reflection:
            _reflect(self._server)
        self._server.add_generic_rpc_handlers((proxy,))

    async def start(self, listen: str) -> int:
        """Bind and serve; return the port.

        Raises:
            RuntimeError: the address cannot be bound.
        """
        port = self._server.add_insecure_port(listen)
        await self._server.start()
        return port

    async def stop(self, *, grace: float) -> None:
        """Give calls in progress ``grace`` seconds, then cancel them."""
        await self._server.stop(grace)
        await self._proxy.close()


def _reflect(server: grpc.aio.Server) -> None:
    """Describe every routed service; needs no key, for it tells only what the protos tell."""
    # Imported here, for reflection is off in production.
    import importlib  # noqa: PLC0415

    from grpc_reflection.v1alpha import reflection  # noqa: PLC0415

    for name in ROUTES.values():
        importlib.import_module(f"lehr.api.{name}.v1.{name}_pb2")
    reflection.enable_server_reflection((*ROUTES, reflection.SERVICE_NAME), server)
