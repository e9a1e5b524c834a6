"""Holds, credit, prices and the ledger, with many callers at once and with crashes."""

import asyncio
from datetime import timedelta

import pytest

from lehr import faults
from lehr.api.billing.v1 import billing_pb2 as pb
from lehr.errors import (
    AlreadyExists,
    FailedPrecondition,
    PlatformError,
    ResourceExhausted,
    Unavailable,
)
from lehr.ids import new_id
from tests.integration.billing.story import Story, euros, micros, until


async def test_a_tenant_begins_with_its_starting_credit(story: Story) -> None:
    found = await story.balance()

    assert (found.credit, found.held, found.available) == (
        euros("1000"),
        euros("0"),
        euros("1000"),
    )


async def test_a_hold_moves_credit_aside_and_locks_prices(story: Story) -> None:
    placed = await story.hold("300", tiers=["slow", "fast"])

    prices = {one.tier: one.price_per_gpu_hour for one in placed.rates}
    assert prices == {"slow": euros("0.96"), "fast": euros("3.84")}
    found = await story.balance()
    assert (found.credit, found.held, found.available) == (
        euros("1000"),
        euros("300"),
        euros("700"),
    )


async def test_the_same_hold_again_holds_nothing_more(story: Story) -> None:
    first = await story.hold("300")
    again = await asyncio.gather(*(story.hold("300") for _ in range(5)))

    assert all(one == first for one in again)
    assert await story.held() == micros("300")


async def test_a_hold_whose_answer_was_lost_is_placed_once(story: Story) -> None:
    faults.arm(story.service.faults, "billing.place_hold.after_commit", action="error")

    placed = await story.hold("300")

    assert faults.fired(story.service.faults, "billing.place_hold.after_commit") == 1
    assert placed.held == euros("300")
    assert await story.kinds() == ["hold"]


async def test_more_than_there_is_cannot_be_held(story: Story) -> None:
    with pytest.raises(ResourceExhausted) as refused:
        await story.hold("1000.01")

    assert refused.value.reason == "INSUFFICIENT_CREDIT"
    assert refused.value.facts == {"needed": "1000.01 EUR", "available": "1000.00 EUR"}
    assert await story.held() == 0


async def test_of_many_holds_at_once_exactly_the_affordable_ones_succeed(story: Story) -> None:
    await story.balance()

    outcomes = await asyncio.gather(
        *(story.hold("150", job_id=new_id("job")) for _ in range(20)), return_exceptions=True
    )

    placed = [one for one in outcomes if isinstance(one, pb.PlaceHoldResponse)]
    refused = [one for one in outcomes if isinstance(one, ResourceExhausted)]
    assert (len(placed), len(refused)) == (6, 14)
    assert (await story.balance()).available == euros("100")
    assert list((await story.reconcile()).differences) == []


async def test_first_uses_at_once_open_one_account(story: Story) -> None:
    found = await asyncio.gather(*(story.balance() for _ in range(10)))

    assert {one.credit.micros for one in found} == {micros("1000")}


async def test_other_terms_replace_a_hold_that_nobody_used(story: Story) -> None:
    await story.hold("300")

    await story.hold("200", tiers=["slow"])

    assert await story.held() == micros("200")
    assert [one.tier for one in (await story.funding()).funding] == ["slow"]


async def test_other_terms_are_refused_once_a_run_was_launched_under_it(story: Story) -> None:
    await story.hold("300")
    await story.tell(story.lease(None, version=1))
    await story.told(0)

    with pytest.raises(AlreadyExists, match="other terms"):
        await story.hold("200")

    assert await story.held() == micros("300")


async def test_a_resume_holds_what_is_left_of_the_whole(story: Story) -> None:
    await story.hold("10")
    await story.tell(story.closed(0, 1000, "USER_STOPPED"))
    await story.until_cost("1.00")

    placed = await story.hold("10", ordinal=2)

    assert placed.held == euros("9")
    assert await story.held() == micros("9")
    assert await story.kinds() == ["hold", "charge", "release", "hold"]


async def test_a_resume_that_allows_no_more_than_was_charged_is_refused(story: Story) -> None:
    await story.hold("10")
    await story.tell(story.closed(0, 1000, "USER_STOPPED"))
    await story.until_cost("1.00")

    with pytest.raises(FailedPrecondition) as refused:
        await story.hold("1", ordinal=2)

    assert refused.value.reason == "BUDGET_BELOW_CHARGED"
    assert await story.held() == micros("9")


@pytest.mark.parametrize("max_duration", [1e-6, 60])
async def test_a_resume_that_allows_no_more_time_than_it_ran_is_refused(
    story: Story, max_duration: float
) -> None:
    await story.hold("10", max_duration=3600)
    story.allocator.put(story.closed(0, 60.9, "USER_STOPPED"))
    await story.tell_finished()
    await story.until_settled()

    with pytest.raises(FailedPrecondition) as refused:
        await story.hold("10", ordinal=2, max_duration=max_duration)

    assert refused.value.reason == "DURATION_BELOW_BILLED"
    assert (await story.cost()).billed_seconds == 60
    assert await story.booked() == micros("0.06")


async def test_a_shorter_time_limit_takes_back_nothing_that_was_charged(story: Story) -> None:
    await story.hold("10", max_duration=3600)
    first = story.closed(0, 100.7, "USER_STOPPED")
    story.allocator.put(first)
    await story.until_cost("0.10")
    await story.hold("10", ordinal=2, max_duration=110)

    # Told late: it had run longer than was known when the time limit was lowered.
    assert first.end_time is not None
    story.allocator.put(story.later(first, end_time=first.end_time + timedelta(seconds=50)))
    story.allocator.put(story.closed(300, 340))

    await story.until_cost("0.15", seconds=150)
    assert list((await story.reconcile()).differences) == []


async def test_a_resume_counts_what_ran_and_was_not_told_yet(story: Story) -> None:
    await story.hold("10")
    story.allocator.tells_changes = False
    story.allocator.put(story.closed(0, 1000, "USER_STOPPED"))
    try:
        with pytest.raises(FailedPrecondition) as refused:
            await story.hold("0.50", ordinal=2)
    finally:
        story.allocator.tells_changes = True

    assert refused.value.reason == "BUDGET_BELOW_CHARGED"
    assert refused.value.facts["charged"] == "1.00 EUR"


async def test_a_resume_waits_while_nobody_can_say_what_ran(story: Story) -> None:
    await story.hold("10")
    story.allocator.is_down = True
    try:
        with pytest.raises(Unavailable):
            await story.hold("20", ordinal=2)
    finally:
        story.allocator.is_down = False

    assert await story.held() == micros("10")


async def test_what_pays_for_no_second_is_not_held(story: Story) -> None:
    with pytest.raises(FailedPrecondition) as refused:
        await story.hold("0.0005", tiers=["base", "fast"])
    await story.hold("0.0005", tiers=["fast", "slow"])

    assert refused.value.reason == "BUDGET_BELOW_SECOND"
    assert await story.held() == 500


async def test_stop_and_resume_again_and_again_within_seconds(story: Story) -> None:
    for ordinal in (1, 2, 3):
        await story.hold("10", ordinal=ordinal)
        over = story.closed(1000 * ordinal, 1000 * ordinal + 100.4, "USER_STOPPED")
        story.allocator.put(over)
        await story.tell(over)
        await story.tell_finished(version=5 * ordinal)
        await story.until_settled()

    cost = await story.cost()
    # The three parts of a second are one whole second.
    assert (cost.total, cost.billed_seconds) == (euros("0.301"), 301)
    assert [line.hold_ordinal for line in cost.lines] == [1, 2, 3]
    assert list((await story.reconcile()).differences) == []


async def test_no_more_is_charged_than_authorised_whatever_ran(story: Story) -> None:
    await story.hold("0.05")

    await story.tell(story.closed(0, 3600, "BUDGET_EXHAUSTED"))

    await story.until_cost("0.05")
    assert await story.held() == 0


async def test_funding_is_to_the_second_and_falls_with_use(story: Story) -> None:
    await story.hold("0.10", max_duration=500)
    before = await story.funding()
    await story.tell(story.closed(0, 30.5, "NODE_LOST", committed=30.5))
    await story.until_cost("0.03")

    after = await story.funding()

    assert before.funding[0].funded_duration.seconds == 100
    assert before.deadline_duration.seconds == 500
    assert after.funding[0].funded_duration.seconds == 70
    assert after.deadline_duration.seconds == 470


async def test_a_job_without_a_hold_is_not_funded(story: Story) -> None:
    await story.hold()
    await story.tell_finished()
    await story.until_settled()

    with pytest.raises(FailedPrecondition) as refused:
        await story.funding()

    assert refused.value.reason == "NO_OPEN_HOLD"


async def test_settling_at_once_by_many_is_settling_once(story: Story) -> None:
    await story.hold("10")
    story.allocator.put(story.closed(0, 100))

    costs = await asyncio.gather(*(story.settle() for _ in range(10)))

    assert {one.total.micros for one in costs} == {100_000}
    assert await story.kinds() == ["hold", "charge", "release"]
    assert (await story.balance()).available == euros("999.90")


async def test_a_job_with_an_open_lease_is_not_settled(story: Story) -> None:
    await story.hold("10")
    running = story.lease(0, alive=10)
    story.allocator.put(running)

    with pytest.raises(FailedPrecondition) as refused:
        await story.settle()

    assert refused.value.reason == "LEASES_OPEN"
    assert (await story.cost()).is_provisional
    story.allocator.put(
        story.later(running, phase=story.closed(0, 1).phase, close_reason="COMPLETED", end_time=20)
    )
    assert (await story.until_settled()).billed_seconds == 20


async def test_killed_between_charge_and_release_it_does_both_once(story: Story) -> None:
    await story.hold("10")
    story.allocator.put(story.closed(0, 100))
    faults.arm(story.service.faults, "billing.settle.after_charge", action="kill")

    with pytest.raises(PlatformError):
        await story.settle()
    story.service.control.kill()
    story.service.control.start()
    await story.until_back()
    await story.settle()

    assert await story.kinds() == ["hold", "charge", "release"]
    assert list((await story.reconcile()).differences) == []


async def test_killed_while_charging_it_charges_once(story: Story) -> None:
    await story.hold("10")
    faults.arm(story.service.faults, "billing.meter.before_commit", action="kill")

    over = story.closed(0, 100)
    await story.tell(over)
    await until(lambda: _fired(story, "billing.meter.before_commit"))
    story.allocator.put(over)
    story.service.control.kill()
    story.service.control.start()
    await story.until_back()

    await story.until_cost("0.10", seconds=100)
    assert await story.kinds() == ["hold", "charge"]


async def _fired(story: Story, name: str) -> int:
    return faults.fired(story.service.faults, name)
