"""What becomes of a message whose handler raised."""

from datetime import timedelta

import grpc
import grpc.aio
import pytest
from pydantic import ValidationError

from lehr.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PlatformError,
    Stale,
    Unavailable,
)
from lehr.events.outcome import Park, Retry, after_failure
from tests.unit.lehr_events.test_base import Point


def a_validation_error() -> ValidationError:
    with pytest.raises(ValidationError) as refused:
        Point.model_validate({})
    return refused.value


def a_failed_call(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "told", "")


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("away"),
        Aborted("again"),
        Stale("faster"),
        KeyError("unforeseen"),
        TimeoutError(),
        PlatformError("of ours"),
        a_failed_call(grpc.StatusCode.UNAVAILABLE),
        a_failed_call(grpc.StatusCode.DEADLINE_EXCEEDED),
        a_failed_call(grpc.StatusCode.INTERNAL),
    ],
)
def test_what_may_pass_is_tried_again_after_a_second(error: Exception) -> None:
    assert after_failure(error, delivery=1) == Retry(delay=timedelta(seconds=1))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (a_validation_error(), "EVENT_MALFORMED"),
        (InvalidArgument("wrong"), "INVALID_ARGUMENT"),
        (NotFound("gone", reason="LEASE_NOT_FOUND"), "LEASE_NOT_FOUND"),
        (FailedPrecondition("closed"), "FAILED_PRECONDITION"),
        (a_failed_call(grpc.StatusCode.NOT_FOUND), "NOT_FOUND"),
    ],
)
def test_what_can_never_succeed_is_parked_at_once(error: Exception, reason: str) -> None:
    assert after_failure(error, delivery=1) == Park(reason=reason)


def test_the_waits_grow_and_then_stay() -> None:
    verdicts = [after_failure(Unavailable("away"), delivery=number) for number in range(1, 10)]

    assert verdicts == [
        Retry(delay=timedelta(seconds=seconds)) for seconds in (1, 2, 5, 10, 30, 60, 300, 300, 300)
    ]


@pytest.mark.parametrize("delivery", [20, 21, 1000])
def test_the_twentieth_failure_is_parked(delivery: int) -> None:
    assert after_failure(Unavailable("away"), delivery=delivery) == Park(
        reason=f"TRIED_{delivery}_TIMES: UNAVAILABLE"
    )


def test_the_nineteenth_failure_is_not() -> None:
    assert isinstance(after_failure(KeyError(), delivery=19), Retry)


def test_an_error_that_names_a_longer_wait_gets_it() -> None:
    full = Unavailable("full", retry_in=timedelta(seconds=40))

    assert after_failure(full, delivery=1) == Retry(delay=timedelta(seconds=40))
    assert after_failure(full, delivery=6) == Retry(delay=timedelta(seconds=60))
