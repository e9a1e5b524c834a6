"""What becomes of a message after its handler: a pure decision."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import grpc
from pydantic import ValidationError

from lehr.errors import PlatformError
from lehr.rpc.translate import errors_from_rpc

BACKOFF: Sequence[timedelta] = tuple(timedelta(seconds=s) for s in (1, 2, 5, 10, 30, 60, 300))
"""Waits after the first, second, ... failure; the last one repeats."""

DELIVERIES_MAX = 20
"""After so many failures a person must look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Deliver the message again after a while."""

    delay: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """Copy the message to the dead letters and deliver it no more."""

    reason: str


def after_failure(error: BaseException, *, delivery: int) -> Retry | Park:
    """Decide about a message whose handler raised at its ``delivery``-th delivery, from 1.

    What can never succeed is parked at once; what we do not understand is tried again, for most
    faults are of the moment.
    """
    if isinstance(error, grpc.RpcError) and hasattr(error, "code"):
        error = errors_from_rpc(error)
    if isinstance(error, ValidationError):
        return Park(reason="EVENT_MALFORMED")
    if isinstance(error, PlatformError) and not _may_pass(error):
        return Park(reason=error.reason)
    if delivery >= DELIVERIES_MAX:
        reason = error.reason if isinstance(error, PlatformError) else type(error).__name__
        return Park(reason=f"TRIED_{delivery}_TIMES: {reason}")
    asked = error.retry_in if isinstance(error, PlatformError) else None
    usual = BACKOFF[min(delivery, len(BACKOFF)) - 1]
    return Retry(delay=max(asked, usual) if asked else usual)


def _may_pass(error: PlatformError) -> bool:
    # A bare PlatformError stands for a fault of another service, whose next answer may differ.
    return error.retryable or error.reason in ("INTERNAL", "UNKNOWN", "REMOTE_FAULT")
