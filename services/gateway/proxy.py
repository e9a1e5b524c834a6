"""The public port: authenticates a call and forwards its bytes to the service that serves it.

Requests and responses are not decoded. A call may be unary or a stream; on the wire a unary call is
a stream of one message, so one handler serves both. A stream lives no longer than its key.
"""

from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio

from lehr.errors import InvalidArgument, PlatformError
from lehr.logs import get_logger
from lehr.rpc.server import SERVER_OPTIONS
from lehr.rpc.translate import DETAILS_KEY, INTERNAL_MESSAGE, code_of, status_of
from services.gateway.admission import Admission
from services.gateway.calls import streaming_paths
from services.gateway.upstream import ServiceAway, Upstream, details_of, is_silence

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

Context = Any  # grpc.aio.ServicerContext, which is generic in its stubs alone.


class ServiceUnknown(InvalidArgument):
    """No service of that name is reached from outside."""

    reason = "SERVICE_UNKNOWN"


class Proxy(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Serves every method of every service in ROUTES by forwarding it."""

    def __init__(self, admission: Admission, upstream: Upstream) -> None:
        self._admission = admission
        self._upstream = upstream
        self._streaming = streaming_paths(ROUTES)
        self._log = get_logger()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of one call; gRPC asks for it by path."""
        path: str = handler_call_details.method
        metadata: dict[str, Any] = dict(handler_call_details.invocation_metadata or ())

        # Written and not yielded: the end of its key must reach a stream while it waits to be read.
        async def forward(requests: Any, context: Context) -> None:
            try:
                await self._forward(path, metadata, requests, context)
            except grpc.aio.AioRpcError as error:
                # A service said no; its words and details go on unchanged.
                if is_silence(error):
                    await _abort(context, ServiceAway(ROUTES[_service_of(path)]))
                await context.abort(error.code(), error.details() or "", details_of(error))
            except PlatformError as error:
                await _abort(context, error)
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # the edge: no text of ours may leak to a caller.
                self._log.error("forwarding_failed", method=path, exc_info=error)
                await context.abort(grpc.StatusCode.INTERNAL, INTERNAL_MESSAGE)

        return grpc.stream_stream_rpc_method_handler(forward)

    async def _forward(
        self, path: str, metadata: dict[str, Any], requests: Any, context: Context
    ) -> None:
        is_stream = path in self._streaming
        async with self._admission.one(metadata.get("authorization"), is_stream=is_stream) as key:
            service = _service_of(path)
            name = ROUTES.get(service)
            if name is None:
                raise ServiceUnknown(f"there is no service {service}", service=service)
            method = self._upstream.channel(name).stream_stream(path, _same, _same)
            call = method(
                requests,
                timeout=context.time_remaining(),
                metadata=self._upstream.metadata(key, metadata),
            )
            try:
                async for answer in call:
                    await context.write(answer)
            finally:
                call.cancel()


async def _abort(context: Context, error: PlatformError) -> None:
    status = status_of(error)
    await context.abort(
        code_of(error), status.message, ((DETAILS_KEY, status.SerializeToString()),)
    )


def _service_of(path: str) -> str:
    return path.removeprefix("/").rpartition("/")[0]


def _same(body: bytes) -> bytes:
    return body


class PublicServer:
    """The port for outside callers."""

    def __init__(self, proxy: Proxy, *, reflection: bool) -> None:
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


def _reflect(server: grpc.aio.Server) -> None:
    """Describe every routed service; needs no key, for it tells only what the protos tell."""
    # Imported here, for reflection is off in production.
    import importlib  # noqa: PLC0415

    from grpc_reflection.v1alpha import reflection  # noqa: PLC0415

    for name in ROUTES.values():
        importlib.import_module(f"lehr.api.{name}.v1.{name}_pb2")
    reflection.enable_server_reflection((*ROUTES, reflection.SERVICE_NAME), server)
