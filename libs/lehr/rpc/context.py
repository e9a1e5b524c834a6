"""What belongs to the call that is being served: its id and how long it may still take."""

import asyncio
from contextvars import ContextVar

REQUEST_ID_KEY = "x-request-id"
TRACEPARENT_KEY = "traceparent"

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Largest message of a call; bulk data belongs in the object store."""

_DEADLINE: ContextVar[float | None] = ContextVar("lehr_deadline", default=None)
_REQUEST_ID: ContextVar[str | None] = ContextVar("lehr_request_id", default=None)


def seconds_left() -> float | None:
    """Return how long the call that is being served may take yet; None where nothing limits it."""
    deadline = _DEADLINE.get()
    return None if deadline is None else deadline - asyncio.get_running_loop().time()


def set_seconds_left(seconds: float) -> None:
    """Limit the rest of this task, and the calls that it makes, to ``seconds`` from now."""
    _DEADLINE.set(asyncio.get_running_loop().time() + seconds)


def request_id() -> str | None:
    """Return the id of the request that is being served; it is the same in every service."""
    return _REQUEST_ID.get()


def set_request_id(value: str) -> None:
    """Remember the id for the rest of this task; calls made in it carry it on."""
    _REQUEST_ID.set(value)
