"""Requests as callers send them, read field by field into values that can be trusted."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from lehr.api.common.v1 import common_pb2
from lehr.api.scheduler.v1 import job_pb2, scheduler_pb2
from lehr.errors import FieldViolation
from lehr.ids import parse_id
from lehr.money import Money
from lehr.rpc.times import duration_of
from lehr.training.proto import spec_from_proto
from services.scheduler.domain.commands import CreateJob, Owner, ResumeJob
from services.scheduler.domain.errors import AuthorizationRequired, RequestInvalid
from services.scheduler.domain.job import Authorization, JobState
from services.scheduler.messages import state_from_proto
from services.scheduler.storage.jobs import Filter

PAGE_SIZE, PAGE_SIZE_MAX = 50, 500
DURATION_MAX = timedelta(days=3650)
START_CURSOR = ("0", "")

_DIGEST = re.compile(r"[0-9a-f]{64}")
_CURRENCY = re.compile(r"[A-Z]{3}")
_CURSOR = re.compile(r"(\d{1,19}):(job_[0-9a-z]{26})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def job_id_of(value: str) -> str:
    """Read a job id."""
    return parse_id(value, "job")


def create_job(request: scheduler_pb2.CreateJobRequest, owner: Owner) -> CreateJob:
    """Read a launch.

    Raises:
        RequestInvalid, SpecInvalid, AuthorizationRequired: with the fields that are wrong.
    """
    digest, spec = "", None
    match request.WhichOneof("what"):
        case "plan_digest":
            digest = request.plan_digest
            if not _DIGEST.fullmatch(digest):
                raise _invalid("plan_digest", "must be the 64 hex digits of a plan")
        case "spec":
            spec = spec_from_proto(request.spec)
        case _:
            raise _invalid("spec", "is missing; give a spec, or the plan_digest of a plan")
    given = request.authorization if request.HasField("authorization") else None
    return CreateJob(
        owner=owner,
        plan_digest=digest,
        spec=spec,
        authorization=authorization(given),
        request_id=request_id(request.request_id),
        dry_run=request.dry_run,
    )


def resume_job(request: scheduler_pb2.ResumeJobRequest, owner: Owner) -> ResumeJob:
    """Read a resume.

    Raises:
        RequestInvalid, AuthorizationRequired: with the fields that are wrong.
    """
    given = request.HasField("authorization")
    return ResumeJob(
        owner=owner,
        job_id=job_id_of(request.job_id),
        request_id=request_id(request.request_id),
        authorization=authorization(request.authorization) if given else None,
    )


def authorization(message: job_pb2.Authorization | None) -> Authorization:
    """Read what may be spent.

    Raises:
        AuthorizationRequired: none, or one that allows nothing.
    """
    wrong = []
    message = message or job_pb2.Authorization()
    cost = message.max_cost
    if cost.micros <= 0:
        told = "must be above zero: the most that may be charged"
        wrong.append(FieldViolation(field="authorization.max_cost", description=told))
    if not _CURRENCY.fullmatch(cost.currency_code):
        told = "must be a currency of three capital letters, such as EUR"
        field = "authorization.max_cost.currency_code"
        wrong.append(FieldViolation(field=field, description=told))
    duration = duration_of(message.max_duration, field="authorization.max_duration")
    if not timedelta(0) < duration <= DURATION_MAX:
        told = "must be above zero and at most ten years: the most running time that may be used"
        wrong.append(FieldViolation(field="authorization.max_duration", description=told))
    if wrong:
        told = "; ".join(f"{one.field} {one.description}" for one in wrong)
        raise AuthorizationRequired(
            f"nothing is launched without saying what may be spent: {told}", fields=wrong
        )
    return Authorization(
        max_cost=Money(currency=cost.currency_code, micros=cost.micros), max_duration=duration
    )


def request_id(value: str) -> str:
    """Read a request key."""
    if not (1 <= len(value) <= 255 and value.isprintable()):
        raise _invalid("request_id", "must be 1 to 255 printable characters of your choice")
    return value


def filter_of(request: scheduler_pb2.ListJobsRequest, owner: Owner) -> Filter:
    """Read which jobs are listed."""
    if not request.name_contains.isprintable():
        raise _invalid("name_contains", "must be printable text")
    return Filter(
        tenant=owner.tenant,
        project=owner.project,
        states=_states(request.states),
        name_contains=request.name_contains,
        after=_page_place(request.page.page_token),
    )


def page_size(page: common_pb2.Page) -> int:
    """Read how many items a page has."""
    return min(page.page_size or PAGE_SIZE, PAGE_SIZE_MAX)


def page_token(create_time: datetime, job_id: str) -> str:
    """Write the place of a job in the list, the last of its page."""
    micros = (create_time - _EPOCH) // timedelta(microseconds=1)
    return base64.urlsafe_b64encode(json.dumps([micros, job_id]).encode()).decode()


def change_cursor(value: str) -> tuple[str, str]:
    """Read a place in the order of changes."""
    if not value:
        return START_CURSOR
    match = _CURSOR.fullmatch(value)
    if match is None:
        raise _invalid("cursor", "must be the next_cursor of an answer, or empty")
    return match[1], match[2]


def _page_place(token: str) -> tuple[datetime, str] | None:
    if not token:
        return None
    try:
        micros, job_id = json.loads(base64.urlsafe_b64decode(token.encode()))
        return _EPOCH + timedelta(microseconds=int(micros)), parse_id(str(job_id), "job")
    except (ValueError, TypeError, OverflowError, RecursionError, binascii.Error):
        raise _invalid("page.page_token", "must be the next_page_token of an answer") from None


def _states(values: Sequence[job_pb2.JobState.ValueType]) -> tuple[JobState, ...]:
    if len(values) > len(JobState):
        raise _invalid("states", f"must name each of the {len(JobState)} states at most once")
    try:
        return tuple(state_from_proto(value) for value in values)
    except ValueError:
        raise _invalid("states", "holds what is no state of a job") from None


def _invalid(field: str, told: str) -> RequestInvalid:
    return RequestInvalid(f"{field} {told}", fields=[FieldViolation(field=field, description=told)])
