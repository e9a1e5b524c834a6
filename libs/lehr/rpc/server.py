"""The gRPC server of a service: identity, policy, deadline, trace and errors around each method."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, cast

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from opentelemetry.trace import SpanKind

from lehr.errors import InvalidArgument, PlatformError
from lehr.ids import event_uuid
from lehr.logs import get_logger, metrics
from lehr.rpc.auth import TOKEN_KEY, Verifier, check_policy, set_caller
from lehr.rpc.context import (
    MESSAGE_BYTES_MAX,
    REQUEST_ID_KEY,
    TRACEPARENT_KEY,
    set_request_id,
    set_seconds_left,
)
from lehr.rpc.tracing import traced
from lehr.rpc.translate import (
    DETAILS_KEY,
    INTERNAL_MESSAGE,
    RemoteFault,
    code_of,
    errors_from_rpc,
    status_of,
)

#: Services that answer anybody: probes carry neither token nor, some of them, a deadline.
OPEN_SERVICES = ("grpc.health.v1.", "grpc.reflection.")

SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Watches are quiet for long; clients ping to notice a dead server (see client.py).
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)

REFUSED_SECONDS = 10.0
"""How long the rest of a refused stream is read for."""

SLOW_SECONDS = 5.0
DO_NOT_REPEAT = ("grpc-retry-pushback-ms", b"-1")
"""A channel would send a call again that failed slowly (gRPC's proposal A6): with a token that has
expired meanwhile, or until the deadline passes, and what was said here would be lost."""

_log = get_logger()

Context = Any  # grpc.aio.ServicerContext, which is generic in its stubs alone.
Policy = Mapping[str, frozenset[str]]


class DeadlineRequired(InvalidArgument):
    """A call without a deadline could wait for ever, and so could what it waits for."""

    reason = "DEADLINE_REQUIRED"


class Server:
    """One listening port with the services that were added to it."""

    def __init__(self, verifier: Verifier, *, reflection: bool = True) -> None:
        self._guard = _Guard(verifier)
        self._server = grpc.aio.server(interceptors=[self._guard], options=SERVER_OPTIONS)
        self._health = HealthServicer()
        self._reflection = reflection
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    def add_servicer(
        self,
        add: Callable[[Any, grpc.aio.Server], None],
        servicer: object,
        *,
        service_name: str,
        policy: Policy,
    ) -> None:
        """Serve ``servicer``; ``policy`` says which services may call a method, by bare name.

        A method that the policy does not name is for the gateway alone.

        Raises:
            ValueError: the policy names a method that the servicer does not have.
        """
        if unknown := sorted(name for name in policy if not hasattr(servicer, name)):
            raise ValueError(f"the policy of {service_name} names {', '.join(unknown)}")
        self._guard.policies[service_name] = policy
        add(servicer, self._server)

    async def start(self, listen: str) -> int:
        """Bind and serve; return the port.

        Raises:
            RuntimeError: the address cannot be bound.
        """
        if self._reflection:
            # Imported late, for it is off in production.
            from grpc_reflection.v1alpha import reflection  # noqa: PLC0415

            names = (*self._guard.policies, "grpc.health.v1.Health", reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        port = self._server.add_insecure_port(listen)
        await self._server.start()
        await self.set_serving(True)
        return port

    async def set_serving(self, serving: bool) -> None:
        """Tell probes whether calls are welcome; the overall state and that of each service."""
        status = health_pb2.HealthCheckResponse
        for name in ("", *self._guard.policies):
            await self._health.set(name, status.SERVING if serving else status.NOT_SERVING)

    async def stop(self, *, grace: float) -> None:
        """Refuse new calls, give those in progress ``grace`` seconds, then cancel them."""
        await self._health.enter_graceful_shutdown()
        ended = asyncio.create_task(self._server.stop(grace))
        # A watch would sit out the whole grace; its client comes again somewhere else.
        self._guard.streams.end()
        await ended


class _Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Puts the layers of ``_Call`` around each method, except those that anybody may call."""

    def __init__(self, verifier: Verifier) -> None:
        self.policies: dict[str, Policy] = {}
        self.streams = _Streams()
        self._verifier = verifier

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        path: str = handler_call_details.method
        service, _, method = path.removeprefix("/").rpartition("/")
        if handler is None or service.startswith(OPEN_SERVICES):
            return handler
        call = _Call(
            path=path,
            method=method,
            metadata=dict(handler_call_details.invocation_metadata or ()),
            policy=self.policies.get(service, {}),
            verifier=self._verifier,
        )
        return _wrapped(handler, call, self.streams)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call with what its layers need."""

    path: str
    method: str
    metadata: Mapping[str, Any]
    policy: Policy
    verifier: Verifier

    @asynccontextmanager
    async def around(self, context: Context, *, needs_deadline: bool) -> AsyncIterator[None]:
        """Enter the layers in order; whatever is raised inside becomes a status."""
        began, code = monotonic(), grpc.StatusCode.OK
        self._enter_request()
        metrics.add("rpc_in_flight")
        try:
            with traced(
                self.path, kind=SpanKind.SERVER, traceparent=self.metadata.get(TRACEPARENT_KEY)
            ):
                self._enter_caller()
                self._enter_deadline(context, needed=needs_deadline)
                yield
        except (grpc.aio.AbortError, asyncio.CancelledError):
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:  # the edge: no text of ours may leak to a caller.
            code, message, details = _status_for(error)
            if monotonic() - began > SLOW_SECONDS:
                details += (DO_NOT_REPEAT,)
            await context.abort(code, message, details)
        finally:
            metrics.add("rpc_in_flight", -1)
            metrics.add("rpc_handled", method=self.path, code=code.name)
            metrics.observe("rpc_handling_seconds", monotonic() - began, method=self.path)

    def _enter_request(self) -> None:
        # Each call is a task with a context of its own, so nothing has to be set back.
        request = self.metadata.get(REQUEST_ID_KEY) or f"req_{event_uuid().hex}"
        set_request_id(request)
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request, method=self.path)

    def _enter_caller(self) -> None:
        found = self.verifier.verify(self.metadata.get(TOKEN_KEY))
        set_caller(found)
        structlog.contextvars.bind_contextvars(calling_service=found.service, tenant=found.tenant)
        check_policy(found, self.method, self.policy)

    def _enter_deadline(self, context: Context, *, needed: bool) -> None:
        left = context.time_remaining()
        if left is not None:
            set_seconds_left(left)
        elif needed:
            raise DeadlineRequired(f"{self.method} needs a deadline; set a timeout on the call")


def _status_for(error: Exception) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return code, message and trailing metadata for what a method raised, and log it."""
    if isinstance(error, grpc.RpcError) and hasattr(error, "code"):
        error = _from_another_service(error)
    if not isinstance(error, PlatformError):
        _log.error("call_failed", exc_info=error)
        return grpc.StatusCode.INTERNAL, INTERNAL_MESSAGE, ()
    code, status = code_of(error), status_of(error)
    if code is grpc.StatusCode.INTERNAL:
        _log.error("call_failed", reason=error.reason, exc_info=error)
    else:
        _log.info("call_refused", reason=error.reason, problem=str(error))
    return code, status.message, ((DETAILS_KEY, status.SerializeToString()),)


def _from_another_service(error: grpc.RpcError) -> PlatformError:
    """Pass on what another service said, unless it speaks about our call alone."""
    theirs = errors_from_rpc(error)
    ours = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)
    if code_of(theirs) in ours or theirs.reason in ("CALLER_FORBIDDEN", "DEADLINE_REQUIRED"):
        return RemoteFault(f"another service refused our call: {theirs}")
    return theirs


class _Streams:
    """The streaming answers in progress, which an ending server cuts off."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending = False

    def end(self) -> None:
        self._ending = True
        for task in self._tasks:
            task.cancel()

    @asynccontextmanager
    async def member(self, context: Context) -> AsyncIterator[None]:
        """Answer UNAVAILABLE if the server ends inside the block."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._ending or context.cancelled():
                raise
            task.uncancel()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the service is stopping; ask again")
        finally:
            self._tasks.discard(task)


async def _read_out(requests: AsyncIterator[Any]) -> None:
    """Read what a refused caller still sends: grpc 1.85 loses a refusal that meets a write."""
    with suppress(TimeoutError):
        async with asyncio.timeout(REFUSED_SECONDS):
            async for _ in requests:
                pass


def _wrapped(handler: Any, call: _Call, streams: _Streams) -> Any:
    """Return a handler of the same kind whose behaviour runs inside the layers."""
    codecs = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }
    if handler.response_streaming:
        behaviour = handler.stream_stream or handler.unary_stream

        async def stream(request: Any, context: Context) -> None:
            # Written and not yielded: a generator that is left alone ends in another context.
            async with (
                streams.member(context),
                call.around(context, needs_deadline=False),
                aclosing(behaviour(request, context)) as responses,
            ):
                async for response in responses:
                    await context.write(response)

        kind = "stream_stream" if handler.request_streaming else "unary_stream"
        return getattr(grpc, f"{kind}_rpc_method_handler")(stream, **codecs)
    behaviour = handler.stream_unary or handler.unary_unary
    needs_deadline = not handler.request_streaming

    async def answer(request: Any, context: Context) -> Any:
        async with call.around(context, needs_deadline=needs_deadline):
            try:
                return await behaviour(request, context)
            except PlatformError:
                if handler.request_streaming:
                    await _read_out(request)
                raise

    kind = "stream_unary" if handler.request_streaming else "unary_unary"
    return getattr(grpc, f"{kind}_rpc_method_handler")(answer, **codecs)
