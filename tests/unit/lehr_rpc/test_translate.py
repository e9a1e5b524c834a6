"""Errors to gRPC and back, without a wire."""

import base64
import string
from datetime import timedelta
from urllib.parse import quote

import grpc
import grpc.aio
import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from lehr import errors
from lehr.errors import FieldViolation, InvalidArgument, NotFound, PlatformError, Unavailable
from lehr.rpc.translate import (
    DETAILS_KEY,
    FACTS_MAX,
    RemoteFault,
    code_of,
    errors_from_rpc,
    raises_platform_errors,
    status_of,
)


class JobNotFound(NotFound):
    reason = "JOB_NOT_FOUND"


def over_the_wire(error: PlatformError) -> PlatformError:
    status: Status = status_of(error)
    details = grpc.aio.Metadata((DETAILS_KEY, status.SerializeToString()))
    return errors_from_rpc(
        grpc.aio.AioRpcError(code_of(error), grpc.aio.Metadata(), details, status.message, "")
    )


def a_failure(code: grpc.StatusCode, text: str = "told") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text, "")


@pytest.mark.parametrize(
    "kind",
    [
        errors.NotFound,
        errors.InvalidArgument,
        errors.FailedPrecondition,
        errors.ResourceExhausted,
        errors.AlreadyExists,
        errors.PermissionDenied,
        errors.Unauthenticated,
        errors.Unavailable,
        errors.Aborted,
    ],
)
def test_each_kind_of_error_arrives_as_itself(kind: type[PlatformError]) -> None:
    arrived = over_the_wire(kind("told", reason="WHY", job_id="job_1"))

    assert type(arrived) is kind
    assert (str(arrived), arrived.reason, arrived.facts) == ("told", "WHY", {"job_id": "job_1"})
    assert arrived.retryable is kind.retryable


def test_a_service_s_own_error_keeps_its_reason_under_the_shared_kind() -> None:
    arrived = over_the_wire(JobNotFound("no job job_1", job_id="job_1"))

    assert type(arrived) is NotFound
    assert arrived.reason == "JOB_NOT_FOUND"


def test_when_to_retry_arrives() -> None:
    arrived = over_the_wire(Unavailable("full", retry_in=timedelta(milliseconds=2500)))

    assert arrived.retry_in == timedelta(milliseconds=2500)


def test_an_error_that_will_not_pass_says_nothing_about_retrying() -> None:
    assert over_the_wire(NotFound("gone")).retry_in is None


def test_wrong_fields_arrive() -> None:
    fields = [FieldViolation(field="r", description="must be at least 1")]

    arrived = over_the_wire(InvalidArgument("wrong", fields=fields))

    assert isinstance(arrived, InvalidArgument)
    assert arrived.fields == fields


def trailers_bytes(status: Status) -> int:
    """Return what an error takes as gRPC writes it: percent encoding, and base64."""
    escaped = quote(status.message, safe=string.punctuation.replace("%", "") + " ")
    return len(escaped) + len(base64.b64encode(status.SerializeToString()))


@pytest.mark.parametrize("letter", ["x", "\u20ac", "%", "\0", "\ud800"])
def test_an_error_fits_into_trailers_however_much_it_says(letter: str) -> None:
    fields = [FieldViolation(field=letter * 999, description=letter * 9999) for _ in range(999)]
    error = InvalidArgument(letter * 99_999, fields=fields, reason="WHY")
    error.facts = {f"{number:02}{letter * 99}": letter * 9999 for number in range(99)}

    arrived = over_the_wire(error)

    assert trailers_bytes(status_of(error)) < 7_800
    assert isinstance(arrived, InvalidArgument)
    assert (arrived.reason, str(arrived)[-3:]) == ("WHY", "...")
    assert len(arrived.facts) == FACTS_MAX
    assert arrived.fields[-1].description.startswith("... and 99")


def test_of_many_wrong_fields_the_first_are_told_and_how_many_more() -> None:
    fields = [FieldViolation(field=f"tiers.{one}", description="is none") for one in range(1000)]

    arrived = over_the_wire(InvalidArgument("wrong", fields=fields))

    assert isinstance(arrived, InvalidArgument)
    *told, rest = arrived.fields
    assert told == fields[: len(told)]
    assert len(told) > 50
    assert rest.description == f"... and {1000 - len(told)} more"


def test_facts_may_be_called_like_parts_of_an_error() -> None:
    error = NotFound("gone")
    error.facts = {"reason": "x", "message": "y", "fields": "z"}

    assert over_the_wire(error).facts == error.facts


def test_an_error_without_a_kind_loses_its_text() -> None:
    status = status_of(PlatformError("password is hunter2", password="hunter2"))

    assert status.message == "internal error"
    assert b"hunter2" not in status.SerializeToString()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Unavailable),
        (grpc.StatusCode.CANCELLED, Unavailable),
        (grpc.StatusCode.INTERNAL, RemoteFault),
        (grpc.StatusCode.UNKNOWN, RemoteFault),
        (grpc.StatusCode.UNIMPLEMENTED, RemoteFault),
    ],
)
def test_a_failure_without_details_is_named_after_its_code(
    code: grpc.StatusCode, kind: type[PlatformError]
) -> None:
    arrived = errors_from_rpc(a_failure(code))

    assert type(arrived) is kind
    assert arrived.reason == code.name


def test_details_that_cannot_be_read_are_done_without() -> None:
    broken = grpc.aio.Metadata((DETAILS_KEY, b"\xff\xff"))

    arrived = errors_from_rpc(
        grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), broken, "gone", "")
    )

    assert (type(arrived), arrived.reason) == (NotFound, "NOT_FOUND")


def test_a_block_raises_our_error_in_place_of_grpc_s() -> None:
    with pytest.raises(Unavailable, match="no route"), raises_platform_errors():
        raise a_failure(grpc.StatusCode.UNAVAILABLE, "no route")


def test_a_block_leaves_other_errors_alone() -> None:
    with pytest.raises(KeyError), raises_platform_errors():
        raise KeyError
