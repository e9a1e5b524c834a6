"""Subjects of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.errors import InvalidArgument
from lehr.events import subjects
from lehr.events.subjects import Subject
from tests.unit.lehr_events.test_base import a_run_told

TOKENS = st.from_regex(r"[A-Za-z0-9_\-=:/]{1,128}", fullmatch=True)


def test_a_subject_has_six_tokens_with_the_id_last() -> None:
    assert subjects.build(a_run_told()) == "evt.run.told.v1.acme.run_1"


def test_the_platform_s_own_tenant_is_an_underscore() -> None:
    built = subjects.build(a_run_told(tenant=""))

    assert built == "evt.run.told.v1._.run_1"
    assert subjects.parse(built).tenant == ""


@given(tenant=TOKENS.filter(lambda token: token != "_"), run_id=TOKENS)
def test_what_was_built_is_parsed_equal(tenant: str, run_id: str) -> None:
    built = subjects.build(a_run_told(tenant=tenant, run_id=run_id))

    assert subjects.parse(built) == Subject(
        noun="run", past="told", version=1, tenant=tenant, subject_id=run_id
    )


@pytest.mark.parametrize("token", ["", "a.b", "a*", ">", "a b", "a\n", "\u00e9", "x" * 129])
def test_an_id_that_would_break_the_subject_is_refused(token: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be part of a subject"):
        subjects.build(a_run_told(run_id=token))


@pytest.mark.parametrize("tenant", ["a.b", "*", ">", "a b"])
def test_a_tenant_that_would_break_the_subject_is_refused(tenant: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be part of a subject"):
        subjects.build(a_run_told(tenant=tenant))


def test_a_tenant_that_looks_like_the_platform_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="reserved"):
        subjects.build(a_run_told(tenant="_"))


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "evt.run.told.v1.acme",
        "evt.run.told.v1.acme.run_1.more",
        "dlq.run.told.v1.acme.run_1",
        "evt.Run.told.v1.acme.run_1",
        "evt.run.told.1.acme.run_1",
        "evt.run.told.vx.acme.run_1",
        "evt.run.told.v1..run_1",
        "evt.run.told.v1.*.run_1",
    ],
)
def test_what_is_no_subject_is_refused(subject: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        subjects.parse(subject)

    assert refused.value.reason == "EVENT_SUBJECT_INVALID"


@pytest.mark.parametrize(
    ("pattern", "subject", "taken"),
    [
        ("evt.job.>", "evt.job.queued.v1.acme.job_1", True),
        ("evt.job.>", "evt.job", False),
        ("evt.job.>", "evt.jobs.queued.v1.acme.job_1", False),
        ("evt.*.finished.v1.*.*", "evt.job.finished.v1.acme.job_1", True),
        ("evt.*.finished.v1.*", "evt.job.finished.v1.acme.job_1", False),
        ("evt.job.finished.v1.acme.job_1", "evt.job.finished.v1.acme.job_1", True),
    ],
)
def test_a_pattern_takes_what_nats_would(pattern: str, subject: str, taken: bool) -> None:
    assert subjects.matches(pattern, subject) is taken
