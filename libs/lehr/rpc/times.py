"""Instants and lengths of time as callers send them: gRPC carries some that Python cannot hold."""

from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from lehr.errors import FieldViolation, InvalidArgument

DURATION_MAX = timedelta(seconds=315_576_000_000)
"""Ten thousand years, the longest of google.protobuf.Duration (duration.proto)."""


def instant_of(message: Timestamp, *, field: str) -> datetime:
    """Return a time in UTC.

    Raises:
        InvalidArgument: it is not of the years 1 to 9999, or its nanos are not 0 to 999999999.
    """
    try:
        return message.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise _refused(field, "must be a time of the years 1 to 9999") from None


def duration_of(message: Duration, *, field: str) -> timedelta:
    """Return a length of time, to the microsecond; it may be negative.

    Raises:
        InvalidArgument: it is longer than ten thousand years, or its nanos are a second or more.
    """
    seconds, nanos = message.seconds, message.nanos
    if abs(nanos) < 1_000_000_000 and abs(seconds) <= DURATION_MAX.total_seconds():
        return timedelta(seconds=seconds, microseconds=nanos // 1000)
    raise _refused(field, "must be at most ten thousand years, with less than a second of nanos")


def _refused(field: str, rule: str) -> InvalidArgument:
    return InvalidArgument(
        f"{field} {rule}", fields=[FieldViolation(field=field, description=rule)]
    )
