"""Refusals as HTTP: a status class, OpenAI's error object, and our reason and facts in it."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

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
from lehr.rpc.translate import INTERNAL_MESSAGE
from lehr.text import shortened

FIELDS_MAX = 20
"""Wrong fields that are told; how many more there are is told after them."""

TEXT_BYTES_MAX = 4096
"""Longest message."""

WORD_BYTES_MAX = 256
"""Longest fact and longest name of a field: both may be the caller's own text."""


class RequestRefused(InvalidArgument):
    """The request is not what the route takes."""

    reason = "REQUEST_REFUSED"


class RouteUnknown(NotFound):
    """There is no such address."""

    reason = "ROUTE_UNKNOWN"


class MethodUnknown(InvalidArgument):
    """The address takes other methods."""

    reason = "METHOD_UNKNOWN"


class BodyTooLarge(InvalidArgument):
    """The body is larger than any that the route has a use for."""

    reason = "BODY_TOO_LARGE"


class BodyTimedOut(InvalidArgument):
    """The rest of the body did not come."""

    reason = "BODY_TIMED_OUT"
    retryable = True


class Stopping(Unavailable):
    """This gateway is stopping, or was told to."""

    reason = "STOPPING"


#: The status of each class. 409 is for what another try may change: clients repeat it.
STATUS: Mapping[type[PlatformError], int] = {
    MethodUnknown: 405,
    BodyTimedOut: 408,
    BodyTooLarge: 413,
    NotFound: 404,
    InvalidArgument: 400,
    FailedPrecondition: 400,
    AlreadyExists: 400,
    PermissionDenied: 403,
    Unauthenticated: 401,
    ResourceExhausted: 429,
    Aborted: 409,
    Unavailable: 503,
}

#: Words of OpenAI's own for some of our reasons; the others are our reason in lower case.
CODES: Mapping[str, str] = {
    "API_KEY_REFUSED": "invalid_api_key",
    "TOO_MANY_CALLS": "rate_limit_exceeded",
}


class WrongField(BaseModel):
    """One wrong field of a request."""

    field: str
    """Path, such as files.0.sha256."""
    description: str
    """What is wrong and what to do."""


class ErrorObject(BaseModel):
    """Why a request was refused."""

    message: str
    """For people: what is wrong, where, and what to do."""
    type: str
    """Kind of the refusal, as OpenAI names it."""
    param: str | None
    """The first wrong field."""
    code: str
    """For programs that know OpenAI's codes."""
    reason: str
    """For programs: stable, the same by gRPC."""
    facts: dict[str, str]
    """Every changing part of the message, by name."""
    fields: list[WrongField]
    """All wrong fields, as far as there is room."""


class ErrorAnswer(BaseModel):
    """What every refusal looks like."""

    error: ErrorObject


def status_of(error: PlatformError) -> int:
    """Return the HTTP status of an error's class."""
    for kind in type(error).__mro__:
        if status := STATUS.get(kind):
            return status
    return 500


def answer_to(error: PlatformError, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer that tells an error; what is our own fault is told without its words."""
    status = status_of(error)
    is_ours = status == 500
    wrong = error.fields if isinstance(error, InvalidArgument) else []
    told = ErrorAnswer(
        error=ErrorObject(
            message=INTERNAL_MESSAGE if is_ours else _text(error),
            type=_type(status, is_worth_another_try=_may_help(error)),
            param=_word(wrong[0].field) if wrong else None,
            code=CODES.get(error.reason, error.reason.lower()),
            reason=error.reason,
            facts={} if is_ours else {name: _word(fact) for name, fact in error.facts.items()},
            fields=_told(wrong),
        )
    )
    return Response(
        # Escaped to ASCII: what a caller sent must not make the answer impossible.
        json.dumps(told.model_dump()),
        status,
        {**_headers(error, status), **(headers or {})},
        media_type="application/json",
    )


def refusal_of_fields(errors: Sequence[Any]) -> RequestRefused:
    """Return what pydantic found wrong in a request, by field."""
    fields = [FieldViolation(field=_path(one["loc"]), description=_words(one)) for one in errors]
    first, more = fields[0], len(fields) - 1
    text = f"{_word(first.field)}: {first.description}"
    return RequestRefused(text + (f"; and {more} more" if more else ""), fields=fields)


def refusal_of(error: HTTPException, method: str, path: str) -> PlatformError:
    """Return what the framework refused, in our words."""
    if isinstance(error.__cause__, PlatformError):
        # Reading the body failed with words of ours, which the framework wrapped.
        return error.__cause__
    asked = _word(f"{method} {path}")
    if error.status_code == 404:
        return RouteUnknown(f"there is no {asked}", path=path)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("allow", "")
        return MethodUnknown(f"there is no {asked}; use {allowed}", path=path, allowed=allowed)
    return RequestRefused("the body cannot be read; send JSON")


def _headers(error: PlatformError, status: int) -> dict[str, str]:
    headers = {"cache-control": "no-store"}
    if _may_help(error):
        seconds = 1.0 if error.retry_in is None else error.retry_in.total_seconds()
        headers["retry-after"] = str(max(1, math.ceil(seconds)))
    elif status < 500:
        # OpenAI's client repeats some statuses unless it is told that this is of no use.
        headers["x-should-retry"] = "false"
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def _may_help(error: PlatformError) -> bool:
    """Return whether the same request may succeed later; what crossed gRPC says it by its time."""
    return error.retryable or error.retry_in is not None


def _type(status: int, *, is_worth_another_try: bool) -> str:
    match status:
        case 403:
            return "permission_error"
        case 429:
            return "rate_limit_error" if is_worth_another_try else "insufficient_quota"
        case 500 | 503:
            return "server_error"
        case _:
            return "invalid_request_error"


def _text(error: PlatformError) -> str:
    return shortened(str(error), bytes_max=TEXT_BYTES_MAX)


def _told(fields: Sequence[FieldViolation]) -> list[WrongField]:
    told = [
        WrongField(
            field=_word(one.field),
            description=shortened(one.description, bytes_max=2 * WORD_BYTES_MAX),
        )
        for one in fields[:FIELDS_MAX]
    ]
    if len(fields) > FIELDS_MAX:
        told.append(WrongField(field="", description=f"... and {len(fields) - FIELDS_MAX} more"))
    return told


def _path(location: Sequence[str | int]) -> str:
    """Return where something is in the body, the query or the path, without saying in which."""
    return ".".join(str(part) for part in location[1:]) or str(location[0])


def _words(problem: Mapping[str, Any]) -> str:
    match problem["type"]:
        case "extra_forbidden":
            return "there is no such field"
        case "missing":
            return "must be given"
        case "json_invalid":
            return f"is no JSON: {problem['ctx']['error']}"
        case _:
            return str(problem["msg"])


def _word(text: str) -> str:
    return shortened(text, bytes_max=WORD_BYTES_MAX)
