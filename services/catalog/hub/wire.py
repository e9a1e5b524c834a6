"""What parent and child say to each other: one JSON object a line, and errors by kind."""

import json
from collections.abc import Mapping
from typing import Any

from lehr.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PlatformError,
    Unavailable,
)
from lehr.logs.redaction import redact_text

LINE_BYTES_MAX = 64 * 2**20
"""Longest message; it holds the listing of a repository."""

MORE = b"more\n"
"""What the parent answers when it has put a file away."""

_KINDS: Mapping[str, type[PlatformError]] = {
    kind.__name__: kind
    for kind in (NotFound, InvalidArgument, FailedPrecondition, PermissionDenied, Unavailable)
}
_MESSAGE_CHARACTERS_MAX = 1000


class HubFault(Unavailable):
    """A hub, a bucket or their client library did what was not expected."""

    reason = "HUB_FAULT"


def encode(message: Mapping[str, Any]) -> bytes:
    """Write a message."""
    return json.dumps(message, ensure_ascii=True).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Read a message."""
    found: dict[str, Any] = json.loads(line)
    return found


def refusal(error: PlatformError, *, hidden: tuple[str, ...] = ()) -> dict[str, Any]:
    """Write an error without ``hidden`` and whatever looks like a secret."""
    text = redact_text(str(error))
    for secret in filter(None, hidden):
        text = text.replace(secret, "[masked]")
    kind = next(name for name, one in _KINDS.items() if isinstance(error, one))
    return {"refused": [kind, error.reason, text[:_MESSAGE_CHARACTERS_MAX]]}


def refused(message: Mapping[str, Any]) -> PlatformError:
    """Read an error."""
    kind, reason, text = message["refused"]
    return _KINDS[kind](text, reason=reason)
