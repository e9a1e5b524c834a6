"""The one place where our errors become a gRPC status, and where a status becomes our error."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
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
from lehr.text import shortened

# gRPC carries all of this in trailers, which the other end may refuse from 8 KiB on: grpc-message
# in percent encoding, and the details, which repeat it, in base64.
MESSAGE_BYTES_MAX = 1200
DETAILS_BYTES_MAX = 3200
"""Of facts and wrong fields together; what does not fit is left out."""
FACT_BYTES_MAX = 256
FACTS_MAX = 8
FIELD_BYTES_MAX = 128

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
    """Return the rich status of an error: reason, facts, when to retry, which fields are wrong.

    It fits into the trailers of a call: long texts are shortened, and of many wrong fields the
    first are told, and how many more there are.
    """
    code = code_of(error)
    # A bare PlatformError has no meaning for a caller, so its text stays here as well.
    is_ours = code is grpc.StatusCode.INTERNAL
    message = INTERNAL_MESSAGE if is_ours else _message(str(error))
    info = ErrorInfo(
        reason=error.reason, domain=DOMAIN, metadata={} if is_ours else _facts(error.facts)
    )
    details = [_packed(info)]
    if error.retryable:
        retry = RetryInfo()
        retry.retry_delay.FromTimedelta(error.retry_in or timedelta(seconds=1))
        details.append(_packed(retry))
    if isinstance(error, InvalidArgument) and error.fields:
        left = DETAILS_BYTES_MAX - info.ByteSize()
        details.append(_packed(_bad_request(error.fields, bytes_max=left)))
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


def _message(text: str) -> str:
    """Shorten a message to what its percent encoding leaves room for."""
    told = shortened(text, bytes_max=MESSAGE_BYTES_MAX)
    # Each byte that is not printable ASCII, or a percent sign, takes three.
    longer = sum(2 for byte in told.encode() if not 0x20 <= byte <= 0x7E or byte == 0x25)
    return shortened(told, bytes_max=max(MESSAGE_BYTES_MAX // 3, MESSAGE_BYTES_MAX - longer))


def _facts(facts: Mapping[str, str]) -> dict[str, str]:
    told = list(facts.items())[:FACTS_MAX]
    return {
        shortened(name, bytes_max=64): shortened(str(value), bytes_max=FACT_BYTES_MAX)
        for name, value in told
    }


def _bad_request(fields: Sequence[FieldViolation], *, bytes_max: int) -> Any:
    told = BadRequest()
    for index, one in enumerate(fields):
        field = shortened(one.field, bytes_max=FIELD_BYTES_MAX)
        description = shortened(one.description, bytes_max=2 * FACT_BYTES_MAX)
        told.field_violations.add(field=field, description=description)
        if told.ByteSize() > bytes_max and index:
            del told.field_violations[-1]
            told.field_violations.add(description=f"... and {len(fields) - index} more")
            break
    return told


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
