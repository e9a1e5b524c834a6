"""Plan and create: checked, held, stored once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from lehr import faults
from lehr.api.common.v1 import common_pb2
from lehr.api.scheduler.v1 import job_pb2, scheduler_pb2
from lehr.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from lehr.postgres import Database
from lehr.rpc.client import raises_platform_errors
from services.scheduler.domain.job import MOVES
from tests.integration.scheduler.story import ALLOWED, Story, a_spec


async def create(
    story: Story, *, patiently: bool = False, **fields: Any
) -> scheduler_pb2.CreateJobResponse:
    """Create a job; ``patiently`` waits for a scheduler that was just started again."""
    values: dict[str, Any] = {"spec": a_spec(), "authorization": ALLOWED, "request_id": "key"}
    request = scheduler_pb2.CreateJobRequest(**values | fields)
    with raises_platform_errors():
        return await story.user.CreateJob(request, wait_for_ready=patiently)


async def plan(story: Story, **fields: Any) -> job_pb2.Plan:
    with raises_platform_errors():
        request = scheduler_pb2.PlanJobRequest(spec=a_spec(**fields))
        return (await story.user.PlanJob(request)).plan


async def test_the_schema_allows_the_moves_of_the_domain(admin: Database) -> None:
    async with admin.connection() as conn:
        rows = await conn.fetch("SELECT from_state, to_state FROM scheduler.job_moves")

    stored = {(row["from_state"], row["to_state"]) for row in rows}
    assert stored == {(have.value, want.value) for have in MOVES for want in MOVES[have]}


async def test_a_plan_says_everything_and_spends_nothing(story: Story) -> None:
    made = await plan(story, tier="h", backup_tiers=["l"])

    assert [(one.tier, one.free_count) for one in made.tiers] == [("h", 1), ("l", 2)]
    assert made.spec.data.max_length == 256
    assert (made.total_steps, made.data.train_count) == (23, 90)
    assert made.estimate.cost_low.micros <= made.estimate.cost_high.micros
    assert "the catalog says hello" in made.warnings
    assert (made.expire_time.seconds - made.create_time.seconds) == 7 * 86400
    assert story.peers.billing.holds == {} or await story.count("jobs") == 0


async def test_a_plan_is_launched_by_its_digest(story: Story) -> None:
    made = await plan(story)

    created = await create(story, spec=None, plan_digest=made.plan_digest)

    assert created.job.plan_digest == made.plan_digest
    assert created.job.spec == made.spec
    assert created.job.authorization == ALLOWED


async def test_an_expired_plan_is_refused(story: Story) -> None:
    made = await plan(story)
    async with story.admin.connection() as conn:
        await conn.execute("UPDATE clock.shift SET amount = '8 days'")

    with pytest.raises(FailedPrecondition) as error:
        await create(story, spec=None, plan_digest=made.plan_digest)

    assert error.value.reason == "PLAN_EXPIRED"


async def test_a_plan_whose_price_has_changed_is_refused_and_nothing_is_held(story: Story) -> None:
    made = await plan(story, tier="h", backup_tiers=["l"])
    story.peers.billing.prices["l"] = 90_000_000
    held = len(story.peers.billing.holds)

    with pytest.raises(FailedPrecondition) as error:
        await create(story, spec=None, plan_digest=made.plan_digest, request_id="dear")

    assert error.value.reason == "PRICE_CHANGED"
    assert error.value.facts["shown"] == "l=0.90 EUR"
    assert error.value.facts["now"] == "l=90.00 EUR"
    assert (await story.count("jobs"), len(story.peers.billing.holds)) == (0, held)
    again = await plan(story, tier="h", backup_tiers=["l"])
    assert again.plan_digest != made.plan_digest
    created = await create(story, spec=None, plan_digest=again.plan_digest, request_id="dear")
    assert created.job.plan_digest == again.plan_digest


async def test_a_price_that_changes_as_money_is_held_is_refused_and_the_money_flows_back(
    story: Story,
) -> None:
    made = await plan(story)
    story.peers.billing.prices_at_hold["cpu"] = 1

    with pytest.raises(FailedPrecondition) as error:
        await create(story, spec=None, plan_digest=made.plan_digest, request_id="late")

    assert error.value.reason == "PRICE_CHANGED"
    assert await story.count("jobs") == await story.count("request_keys") == 0
    assert story.peers.billing.settled == [job_id for job_id, _ in story.peers.billing.holds][-1:]


async def test_a_plan_of_another_project_is_unknown(story: Story) -> None:
    made = await plan(story)

    async with story.service.called_by("gateway", project="other") as channel:
        stub = type(story.user)(channel)
        with pytest.raises(NotFound), raises_platform_errors():
            await stub.CreateJob(
                scheduler_pb2.CreateJobRequest(
                    plan_digest=made.plan_digest, authorization=ALLOWED, request_id="key"
                )
            )


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tier": "nosuch"}, "tier"),
        ({"tier": "h", "gpus": 32}, "gpus"),
        ({"gpus": 0}, "gpus"),
        ({"gpus": -1}, "gpus"),
        ({"dataset": "empty"}, "data"),
        ({"adapter": job_pb2.AdapterSpec(type="magic")}, "adapter.type"),
        ({"name": "a\0b"}, "name"),
    ],
)
async def test_the_impossible_is_refused_and_nothing_is_queued(
    story: Story, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as error:
        await create(story, spec=a_spec(**fields))

    assert [one.field for one in error.value.fields] == [field]
    assert await story.count("jobs") == 0


async def test_what_the_catalog_refuses_is_passed_on(story: Story) -> None:
    with pytest.raises(NotFound, match="no dataset nosuch"):
        await create(story, spec=a_spec(dataset="nosuch"))


async def test_a_repeated_create_gives_the_same_job(story: Story) -> None:
    first = await create(story)
    again = await create(story)

    assert again.job.job_id == first.job.job_id
    assert (first.is_replay, again.is_replay) == (False, True)


async def test_another_request_with_the_same_key_is_refused(story: Story) -> None:
    await create(story)

    with pytest.raises(AlreadyExists) as error:
        await create(story, spec=a_spec(name="other"))

    assert error.value.reason == "IDEMPOTENCY_KEY_REUSED"
    assert await story.count("jobs") == 1


async def test_twenty_equal_requests_at_once_make_one_job(story: Story) -> None:
    answers = await asyncio.gather(*(create(story) for _ in range(20)))

    assert len({answer.job.job_id for answer in answers}) == 1
    assert sum(not answer.is_replay for answer in answers) == 1
    assert (await story.count("jobs"), await story.count("request_keys")) == (1, 1)
    assert [fact for fact, _ in await story.facts(answers[0].job.job_id)][:1] == ["queued"]


async def test_of_two_different_requests_at_once_one_is_refused(story: Story) -> None:
    answers = await asyncio.gather(
        *(create(story, spec=a_spec(name=f"job {n % 2}")) for n in range(10)),
        return_exceptions=True,
    )

    made = {answer.job.spec.name for answer in answers if not isinstance(answer, BaseException)}
    assert len(made) == 1
    assert await story.count("jobs") == 1


async def test_an_answer_lost_after_the_commit_is_found_again(story: Story) -> None:
    faults.arm(story.service.faults, "scheduler.create.after_commit", action="kill")
    with pytest.raises(Unavailable):
        await create(story)

    faults.disarm(story.service.faults)
    story.service.control.start()
    answer = await create(story, patiently=True)

    assert answer.is_replay
    assert await story.count("jobs") == 1


async def test_a_crash_between_hold_and_job_is_taken_up_by_the_retry(story: Story) -> None:
    faults.arm(story.service.faults, "scheduler.create.after_hold", action="kill")
    with pytest.raises(Unavailable):
        await create(story)
    held = await story.count("jobs")

    faults.disarm(story.service.faults)
    story.service.control.start()
    answer = await create(story, patiently=True)

    assert held == 0
    assert not answer.is_replay
    assert [
        ordinal for job_id, ordinal in story.peers.billing.holds if job_id == answer.job.job_id
    ] == [1]


async def test_without_credit_nothing_is_queued_and_the_key_is_free_again(story: Story) -> None:
    story.peers.billing.credit_micros = 1
    with pytest.raises(ResourceExhausted, match="not enough credit"):
        await create(story, request_id="poor")
    story.peers.billing.credit_micros = 10**12

    answer = await create(story, spec=a_spec(name="cheaper"), request_id="poor")

    assert answer.job.spec.name == "cheaper"


@pytest.mark.parametrize(
    "given",
    [
        None,
        job_pb2.Authorization(),
        job_pb2.Authorization(max_cost=common_pb2.Money(currency_code="EUR", micros=1)),
        job_pb2.Authorization(max_cost=ALLOWED.max_cost, max_duration=Duration(seconds=-1)),
        job_pb2.Authorization(
            max_cost=common_pb2.Money(currency_code="EUR", micros=-5),
            max_duration=ALLOWED.max_duration,
        ),
    ],
)
async def test_nothing_is_launched_without_an_authorisation(
    story: Story, given: job_pb2.Authorization | None
) -> None:
    with pytest.raises(InvalidArgument) as error:
        await create(story, authorization=given)

    assert error.value.reason == "AUTHORIZATION_REQUIRED"


async def test_a_duration_that_is_none_is_refused_by_name(story: Story) -> None:
    endless = job_pb2.Authorization(max_cost=ALLOWED.max_cost, max_duration=Duration(seconds=2**62))

    with pytest.raises(InvalidArgument) as error:
        await create(story, authorization=endless)

    assert [one.field for one in error.value.fields] == ["authorization.max_duration"]


async def test_an_authorisation_in_another_currency_is_refused(story: Story) -> None:
    dollars = job_pb2.Authorization(
        max_cost=common_pb2.Money(currency_code="USD", micros=5), max_duration=ALLOWED.max_duration
    )

    with pytest.raises(InvalidArgument, match="must be EUR"):
        await create(story, authorization=dollars)


async def test_a_dry_run_stores_and_holds_nothing(story: Story) -> None:
    story.peers.billing.holds.clear()

    answer = await create(story, dry_run=True)

    assert answer.job.state == job_pb2.JOB_STATE_QUEUED
    assert await story.count("jobs") == await story.count("request_keys") == 0
    assert story.peers.billing.holds == {}


@pytest.mark.parametrize("key", ["", "x" * 256, "a\0b"])
async def test_a_key_that_is_none_is_refused(story: Story, key: str) -> None:
    with pytest.raises(InvalidArgument, match="request_id"):
        await create(story, request_id=key)


async def test_two_tenants_with_one_key_have_two_jobs(story: Story) -> None:
    mine = await create(story)
    async with story.service.called_by("gateway", tenant="rival") as channel:
        theirs = await type(story.user)(channel).CreateJob(
            scheduler_pb2.CreateJobRequest(spec=a_spec(), authorization=ALLOWED, request_id="key")
        )

    assert mine.job.job_id != theirs.job.job_id
    assert await story.count("jobs") == 2
