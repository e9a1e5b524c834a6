"""Typed errors that keep their meaning from a domain, across gRPC, to a person."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldViolation:
    """One wrong field of an input."""

    field: str
    """Path of the field as its author wrote it, such as ``training.learning_rate``."""

    description: str
    """What is wrong and what to do."""


class PlatformError(Exception):
    """Something that a caller asked for cannot be done.

    Subclasses set ``reason``; one that crossed gRPC carries the reason that it was sent with.
    A mistake of ours is not a PlatformError: it is left to crash.
    """

    reason: str = "INTERNAL"
    """Stable name in UPPER_SNAKE for programs; the message is for people."""

    retryable: bool = False
    """Whether the same request may succeed later, unchanged."""

    retry_in: timedelta | None = None
    """How long to wait before asking again; None leaves it to the caller."""

    facts: dict[str, str]
    """Every changing part of the message, by name."""

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        retry_in: timedelta | None = None,
        **facts: object,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.facts = {name: str(fact) for name, fact in facts.items()}
        if reason is not None:
            self.reason = reason
        if retry_in is not None:
            self.retry_in = retry_in


class NotFound(PlatformError):
    """The thing does not exist, or not for this tenant."""

    reason = "NOT_FOUND"


class InvalidArgument(PlatformError):
    """The input is wrong whatever the state of the platform."""

    reason = "INVALID_ARGUMENT"

    fields: list[FieldViolation]
    """The wrong fields, all of them, so that one round of corrections is enough."""

    def __init__(
        self,
        message: str,
        *,
        fields: Sequence[FieldViolation] = (),
        reason: str | None = None,
        retry_in: timedelta | None = None,
        **facts: object,
    ) -> None:
        super().__init__(message, reason=reason, retry_in=retry_in, **facts)
        self.fields = list(fields)


class FailedPrecondition(PlatformError):
    """The state of the platform forbids it, and waiting will not help."""

    reason = "FAILED_PRECONDITION"


class ResourceExhausted(PlatformError):
    """A quota, a budget or a rate is used up."""

    reason = "RESOURCE_EXHAUSTED"


class AlreadyExists(PlatformError):
    """Another thing has the name, or the same request key came with another body."""

    reason = "ALREADY_EXISTS"


class PermissionDenied(PlatformError):
    """The caller is known and may not do this."""

    reason = "PERMISSION_DENIED"


class Unauthenticated(PlatformError):
    """The caller is not known."""

    reason = "UNAUTHENTICATED"


class Unavailable(PlatformError):
    """A part of the platform does not answer now."""

    reason = "UNAVAILABLE"
    retryable = True


class Aborted(PlatformError):
    """Another request was faster; asking again decides on the new state."""

    reason = "ABORTED"
    retryable = True


class Stale(Aborted):
    """A guarded write found another version than the one that was read."""

    reason = "STALE_VERSION"
