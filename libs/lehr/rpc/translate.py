"""The one place where our errors become a gRPC status, and where a status becomes our error."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import (  # type: ignore[import-untyped]
    BadRequest,
    ErrorInfo,
    RetryInfo,
)
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from lehr.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    FieldViolation,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PlatformError,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)

DOMAIN = "lehr"
DETAILS_KEY = "grpc-status-details-bin"
INTERNAL_MESSAGE = "internal error"

_CODES: dict[type[PlatformError], grpc.StatusCode] = {
    NotFound: grpc.StatusCode.NOT_FOUND,
    InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    Aborted: grpc.StatusCode.ABORTED,
}
_CLASSES: dict[grpc.StatusCode, type[PlatformError]] = {
    **{code: kind for kind, code in _CODES.items()},
    # The caller cannot know whether the work was done; it may ask again.
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgument,
}


class RemoteFault(PlatformError):  # noqa: N818 - named like its siblings in errors.py
    """Another service failed in a way that it did not mean to; its own log says how."""

    reason = "REMOTE_FAULT"


def code_of(error: PlatformError) -> grpc.StatusCode:
    """Return the status code of an error's class."""
    for kind in type(error).__mro__:
        if code := _CODES.get(kind):
            return code
    return grpc.StatusCode.INTERNAL


def status_of(error: PlatformError) -> Status:
    """Return the rich status of an error: reason, facts, when to retry, which fields are wrong."""
    code = code_of(error)
    # A bare PlatformError has no meaning for a caller, so its text stays here as well.
    message = INTERNAL_MESSAGE if code is grpc.StatusCode.INTERNAL else str(error)
    facts = {} if code is grpc.StatusCode.INTERNAL else error.facts
    details = [
        _packed(
            ErrorInfo(
                reason=error.reason,
                domain=DOMAIN,
                metadata={name: str(value) for name, value in facts.items()},
            )
        )
    ]
    if error.retryable:
        retry = RetryInfo()
        retry.retry_delay.FromTimedelta(error.retry_in or timedelta(seconds=1))
        details.append(_packed(retry))
    if isinstance(error, InvalidArgument) and error.fields:
        details.append(
            _packed(
                BadRequest(
                    field_violations=[
                        BadRequest.FieldViolation(field=one.field, description=one.description)
                        for one in error.fields
                    ]
                )
            )
        )
    return Status(code=code.value[0], message=message, details=details)


def errors_from_rpc(exc: grpc.RpcError) -> PlatformError:
    """Rebuild the error that a server of ours raised; works for sync and async calls alike.

    The class follows the status code, ``reason``, ``facts`` (as text), ``retry_in`` and ``fields``
    the details. What carries no details of ours (a refused connection, a deadline) keeps the name
    of its code as reason.
    """
    code: grpc.StatusCode = exc.code()
    text: str = exc.details() or code.name
    kind = _CLASSES.get(code, RemoteFault)
    status = _rich_status(exc)
    info, retry, bad = ErrorInfo(), RetryInfo(), BadRequest()
    for detail in status.details:
        for target in (info, retry, bad):
            detail.Unpack(target)
    error = kind(text, reason=info.reason if info.domain == DOMAIN else code.name)
    if info.domain == DOMAIN:
        error.facts = dict(info.metadata)
    if retry.HasField("retry_delay"):
        error.retry_in = retry.retry_delay.ToTimedelta()
    if isinstance(error, InvalidArgument):
        error.fields = [
            FieldViolation(field=one.field, description=one.description)
            for one in bad.field_violations
        ]
    return error


@contextmanager
def raises_platform_errors() -> Iterator[None]:
    """Turn a failed call inside the block into the error that the server raised.

    Works around ``await stub.Method(...)``, around ``async for`` over a stream, and for sync stubs.
    """
    try:
        yield
    except grpc.RpcError as exc:
        if not hasattr(exc, "code"):
            raise
        raise errors_from_rpc(exc) from exc


async def stream_of(call: Any) -> AsyncIterator[Any]:
    """Iterate over a streaming call with its errors translated."""
    with raises_platform_errors():
        async for item in call:
            yield item


def _packed(message: Any) -> AnyMessage:
    box = AnyMessage()
    box.Pack(message)
    return box


def _rich_status(exc: grpc.RpcError) -> Status:
    metadata: Any = exc.trailing_metadata()
    for key, value in metadata or ():
        if key == DETAILS_KEY:
            try:
                return Status.FromString(value)
            except DecodeError:
                break
    return Status()
