"""Channels to other services: who we are, a deadline, a trace and retries on every call."""

import json
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from lehr.rpc.auth import TOKEN_KEY, Identity, outgoing
from lehr.rpc.context import (
    MESSAGE_BYTES_MAX,
    REQUEST_ID_KEY,
    TRACEPARENT_KEY,
    request_id,
    seconds_left,
)
from lehr.rpc.tracing import current_traceparent
from lehr.rpc.translate import errors_from_rpc, raises_platform_errors, stream_of

__all__ = ["channel", "errors_from_rpc", "raises_platform_errors", "stream_of"]

DEADLINE_SECONDS = 10.0
"""What a call may take unless it says so itself."""

PASSED_ON = 0.9
"""Part of the time left that a further call gets, so that its failure can still be answered."""

RETRIES = {
    "methodConfig": [
        {
            # Every call is idempotent by its natural key, so it may be sent again.
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2.5,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}

CHANNEL_OPTIONS = (
    ("grpc.service_config", json.dumps(RETRIES)),
    ("grpc.enable_retries", 1),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # The defaults would keep a restarted service unreachable for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


def channel(
    address: str, identity: Identity, *, deadline_seconds: float = DEADLINE_SECONDS
) -> grpc.aio.Channel:
    """Return a channel to another service; connects at the first call and again by itself.

    Each call carries a token for :func:`lehr.rpc.auth.acting_for` or for the caller that is being
    served, the request id and the trace. A unary call without a timeout gets ``deadline_seconds``,
    and never more than what the call that is being served has left. Failures are
    ``grpc.aio.AioRpcError``; :func:`raises_platform_errors` turns them into ours.
    """
    dress = _Dresser(identity, deadline_seconds)
    interceptors: list[Any] = [
        _UnaryUnary(dress),
        _UnaryStream(dress),
        _StreamUnary(dress),
        _StreamStream(dress),
    ]
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS, interceptors=interceptors)


def allowed_seconds(wanted: float | None, *, default: float, left: float | None) -> float:
    """Return the deadline of a call made with ``left`` seconds of the served call remaining."""
    asked = default if wanted is None else wanted
    return asked if left is None else max(0.0, min(asked, left * PASSED_ON))


class _Dresser:
    """Completes the details of a call."""

    def __init__(self, identity: Identity, deadline_seconds: float) -> None:
        self._identity = identity
        self._deadline_seconds = deadline_seconds

    def __call__(
        self, details: grpc.aio.ClientCallDetails, *, is_stream: bool
    ) -> grpc.aio.ClientCallDetails:
        metadata = grpc.aio.Metadata(*(details.metadata or ()))
        metadata[TOKEN_KEY] = self._identity.token(outgoing())
        if request := request_id():
            metadata[REQUEST_ID_KEY] = request
        if traceparent := current_traceparent():
            metadata[TRACEPARENT_KEY] = traceparent
        timeout = details.timeout
        if not is_stream:
            timeout = allowed_seconds(timeout, default=self._deadline_seconds, left=seconds_left())
        return grpc.aio.ClientCallDetails(
            method=details.method,
            timeout=timeout,
            metadata=metadata,
            credentials=details.credentials,
            wait_for_ready=details.wait_for_ready,
        )


class _Intercepting:
    def __init__(self, dress: _Dresser) -> None:
        self._dress = dress


# The stubs make these classes generic; at run time they are not.
class _UnaryUnary(_Intercepting, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], details: Any, request: Any
    ) -> Any:
        return await continuation(self._dress(details, is_stream=False), request)


class _UnaryStream(_Intercepting, grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    async def intercept_unary_stream(
        self, continuation: Callable[..., Any], details: Any, request: Any
    ) -> Any:
        return await continuation(self._dress(details, is_stream=True), request)


class _StreamUnary(_Intercepting, grpc.aio.StreamUnaryClientInterceptor):  # type: ignore[type-arg]
    async def intercept_stream_unary(
        self, continuation: Callable[..., Any], details: Any, requests: Any
    ) -> Any:
        return await continuation(self._dress(details, is_stream=True), requests)


class _StreamStream(_Intercepting, grpc.aio.StreamStreamClientInterceptor):  # type: ignore[type-arg]
    async def intercept_stream_stream(
        self, continuation: Callable[..., Any], details: Any, requests: Any
    ) -> Any:
        return await continuation(self._dress(details, is_stream=True), requests)
