"""Without events, with the owners away, after crashes of nodes, and the proof that all agrees."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from lehr.api.billing.v1 import billing_pb2 as pb
from lehr.ids import new_id
from tests.integration.billing.story import Story, euros, micros, until

DAY = "2 days"


@pytest.fixture
async def own_time(story: Story) -> AsyncIterator[None]:
    """Put the clock back at the end."""
    yield
    await _shift(story, "0")


async def test_the_sweep_heals_everything_without_any_event(story: Story) -> None:
    await story.hold("10")
    running = story.lease(0, alive=50)
    story.allocator.put(running)
    await story.until_cost("0.05", seconds=50)

    story.allocator.put(
        story.later(running, phase=story.closed(0, 1).phase, close_reason="COMPLETED", end_time=80)
    )
    story.scheduler.put(story.tenant, story.job_id, "SUCCEEDED", version=7, at=await story.now())

    settled = await story.until_settled()
    assert (settled.total, settled.billed_seconds) == (euros("0.08"), 80)
    assert await story.held() == 0
    assert list((await story.reconcile()).differences) == []


async def test_a_running_job_is_charged_as_it_lives(story: Story) -> None:
    await story.hold("10")
    running = story.lease(0, alive=10)
    story.allocator.put(running)
    await story.until_cost("0.01")

    story.allocator.put(story.later(running, version=2, alive_time=25))

    await story.until_cost("0.025", seconds=25)
    assert (await story.cost()).is_provisional
    assert list((await story.reconcile()).differences) == []


async def test_the_live_cost_is_ahead_of_the_books_and_never_falls(story: Story) -> None:
    await story.hold("10")
    running = story.lease(0, alive=0)
    story.allocator.put(running)
    totals = []

    for alive in (5, 9, 9, 30, 31):
        running = story.later(running, version=2, alive_time=alive)
        story.allocator.put(running)
        totals.append((await story.cost()).total.micros)

    assert totals == [5_000, 9_000, 9_000, 30_000, 31_000]


async def test_a_moved_clock_makes_no_running_job_cheaper(story: Story, own_time: None) -> None:
    await story.hold("10")
    story.allocator.put(story.lease(0, alive=20))
    before = await story.cost()

    totals = []
    for amount in ("1 hour", "-1 hour", DAY, "0"):
        await _shift(story, amount)
        totals.append((await story.cost()).total.micros)

    assert totals == [before.total.micros] * 4 == [20_000] * 4


async def test_after_a_stop_the_cost_is_the_same_at_each_reading(
    story: Story, own_time: None
) -> None:
    await story.hold("10")
    running = story.lease(0, alive=100)
    story.allocator.put(running)
    stopping = story.later(running, stop_time=100, alive_time=101)
    story.allocator.put(stopping)

    readings = [await story.cost()]
    over = story.later(stopping, phase=story.closed(0, 1).phase, close_reason="USER_STOPPED",
                       end_time=140, alive_time=140)  # fmt: skip
    story.allocator.put(over)
    readings.append(await story.cost())
    await story.tell_finished()
    readings.append(await story.until_settled())
    await _shift(story, "14 hours")
    readings.append(await story.cost())

    assert {(one.total.micros, one.billed_seconds) for one in readings} == {(100_000, 100)}


async def test_a_lost_node_is_billed_to_its_last_word_and_what_it_tells_late_counts(
    story: Story,
) -> None:
    await story.hold("10")
    running = story.lease(0, alive=30, committed=30)
    await story.tell(running)
    lost = story.later(running, phase="LOST", close_reason="NODE_LOST", end_time=30)
    story.allocator.put(lost)
    await story.tell(lost)
    first = await story.until_cost("0.03", seconds=30)
    assert first.is_provisional

    back = story.later(lost, phase=story.closed(0, 1).phase, end_time=36, committed_time=36,
                       alive_time=600)  # fmt: skip
    story.allocator.put(back)
    await story.tell(back)
    await story.tell_finished()

    settled = await story.until_settled()
    assert (settled.total, settled.billed_seconds) == (euros("0.036"), 36)
    assert list((await story.reconcile()).differences) == []


async def test_work_that_must_be_redone_is_given_back(story: Story) -> None:
    await story.hold("10")
    running = story.lease(0, alive=100)
    story.allocator.put(running)
    await story.until_cost("0.10")

    story.allocator.put(
        story.later(
            running,
            phase=story.closed(0, 1).phase,
            close_reason="NODE_LOST",
            end_time=100,
            committed_time=60,
        )
    )
    cost = await story.until_cost("0.06", seconds=60)

    assert cost.credited_seconds == 40
    assert await story.kinds() == ["hold", "charge", "refund"]
    assert await story.held() == micros("9.94")
    assert list((await story.reconcile()).differences) == []


async def test_while_the_allocator_is_away_the_cost_stands_still(story: Story) -> None:
    await story.hold("10")
    story.allocator.put(story.lease(0, alive=40))
    await story.until_cost("0.04")

    story.allocator.is_down = True
    cost = await story.cost()
    funding = await story.funding()
    story.allocator.is_down = False

    assert cost.total == euros("0.04")
    assert funding.funding[0].funded_duration.seconds == 9_960


async def test_a_hold_whose_job_never_came_to_be_flows_back(story: Story, own_time: None) -> None:
    await story.hold("10")
    waiting = new_id("job")
    await story.hold("20", job_id=waiting)
    story.scheduler.put(story.tenant, waiting, "QUEUED", version=1, at=await story.now())
    await asyncio.sleep(1.5)
    assert await story.held() == micros("30")

    await _shift(story, "11 minutes")

    await until(lambda: _held_is(story, "20"))
    await asyncio.sleep(1.5)
    assert await story.held() == micros("20")


async def test_a_launch_that_comes_back_after_all_holds_again_at_its_prices(
    story: Story, own_time: None
) -> None:
    placed = await story.hold("10")
    await _shift(story, "11 minutes")
    await until(lambda: _held_is(story, "0"))

    again = await story.hold("10")

    assert again == placed
    assert await story.held() == micros("10")
    assert await story.kinds() == ["hold", "release", "hold"]


async def test_a_restart_loses_nothing(story: Story) -> None:
    await story.hold("10")
    story.service.control.stop()
    over = story.closed(0, 100)
    await story.tell(over)
    story.allocator.put(over)
    await story.tell_finished()

    story.service.control.start()

    settled = await story.until_settled()
    assert settled.billed_seconds == 100
    assert await story.kinds() == ["hold", "charge", "release"]


async def test_a_clean_tenant_is_proven_with_all_its_numbers(story: Story) -> None:
    await story.hold("10", tiers=["slow", "fast"], max_duration=100_000)
    leases = [
        story.closed(0, 100.7, "NODE_LOST", committed=50.3, tier="slow"),
        story.closed(120, 200.4, "PREEMPTED", committed=200.4, tier="fast"),
        story.closed(150, 180.2, tier="slow"),
        story.lease(None, phase="STARTING", alive=7, tier="slow"),
    ]
    story.allocator.put(*leases)
    await asyncio.gather(*(story.tell(lease) for lease in leases))
    await story.told(0)

    proof = await story.reconcile()

    cost = await story.cost()
    assert list(proof.differences) == []
    assert (proof.job_count, proof.lease_count) == (1, 4)
    assert (proof.billed_seconds, proof.charged) == (cost.billed_seconds, cost.total)
    assert {line.tier: line.billed_seconds for line in cost.lines} == {"slow": 80, "fast": 50}


async def test_the_proof_cuts_at_what_was_authorised_as_the_bill_does(story: Story) -> None:
    await story.hold("0.05", tiers=["base", "fast"], max_duration=60)
    leases = [story.closed(0, 45.5), story.closed(50, 90, tier="fast")]
    story.allocator.put(*leases)
    await asyncio.gather(*(story.tell(lease) for lease in leases))

    cost = await story.until_cost("0.05", seconds=59)

    assert list((await story.reconcile()).differences) == []
    assert [line.billed_seconds for line in cost.lines] == [45, 14]


PLANTED = {
    "usage": (
        "UPDATE usage_records SET end_time = end_time + '9 s' WHERE tenant = $1",
        ["or their times differ", "its leases cost"],
    ),
    "missing lease": (
        "DELETE FROM usage_records WHERE tenant = $1",
        ["is not known to billing", "its leases cost 0", "no lease of it had that"],
    ),
    "line": (
        "UPDATE charge_lines SET amount_micros = 7 WHERE tenant = $1",
        ["billing shows 7 for 100 s"],
    ),
    "line price": (
        "UPDATE charge_lines SET micro_per_hour = 7 WHERE tenant = $1",
        ["is charged 7 micros an hour on base, and 3600000 is locked"],
    ),
    "balance": (
        "UPDATE accounts SET balance_micros = balance_micros + 1"
        " WHERE tenant = $1 AND account = 'credit'",
        ["account credit has"],
    ),
    "hold": (
        "UPDATE jobs SET held_micros = held_micros + 1 WHERE tenant = $1",
        ["micros set aside, and"],
    ),
    "limit": (
        "UPDATE holds SET max_cost_micros = 5 WHERE tenant = $1",
        ["more than the 5 authorised", "its leases cost 5"],
    ),
    "settled and open": (
        "UPDATE usage_records SET phase = 'LOST', alive_time = end_time WHERE tenant = $1;"
        "UPDATE jobs SET open_ordinal = NULL, held_micros = 0 WHERE tenant = $1",
        ["is settled and its lease", "is settled and 9900000 micros are still held"],
    ),
    "price lock": (
        "UPDATE holds SET place_time = '2001-01-01' WHERE tenant = $1",
        ["which was not in force at 2001"],
    ),
    "published price": (
        "SET session_replication_role = replica;"
        "UPDATE hold_prices SET micro_per_hour = 9 WHERE tenant = $1;"
        "RESET session_replication_role",
        ["the price of base is 9 micros an hour, and version"],
    ),
    "entry": (
        "SET session_replication_role = replica;"
        "UPDATE ledger_entries SET micros = micros + 3 WHERE tenant = $1 AND account = 'revenue';"
        "RESET session_replication_role",
        ["does not balance", "account revenue has", "the ledger has 100003"],
    ),
    "no price": (
        "SET session_replication_role = replica;"
        "UPDATE usage_records SET tier = 'fast' WHERE tenant = $1;"
        "RESET session_replication_role",
        ["ran on fast without a locked price"],
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
async def test_the_proof_finds_what_does_not_agree(story: Story, planted: str) -> None:
    await story.hold("10")
    story.allocator.put(story.closed(0, 100))
    await story.until_cost("0.10")
    await until(lambda: _swept(story))
    assert list((await story.reconcile()).differences) == []
    statements, expected = PLANTED[planted]

    await _plant(story, statements)

    found = "\n".join((await story.reconcile()).differences)
    assert [part for part in expected if part not in found] == [], found


async def test_the_proof_finds_a_lease_of_which_the_allocator_knows_nothing(story: Story) -> None:
    await story.hold("10")
    await story.tell(story.closed(0, 100))
    await story.until_cost("0.10")

    found = list((await story.reconcile()).differences)

    assert len(found) == 1
    assert "is not known to the allocator" in found[0]


async def test_the_proof_is_of_ones_own_tenant_alone(story: Story) -> None:
    await story.hold("10")
    await story.tell(story.closed(0, 100))
    await story.until_cost("0.10")

    other = await story.ask(
        story.user.Reconcile, pb.ReconcileRequest(), tenant=f"{story.tenant}-other"
    )

    assert (list(other.differences), other.job_count) == ([], 0)


async def test_the_story_told_by_events_is_published(story: Story) -> None:
    await story.hold("10")
    over = story.closed(0, 100)
    story.allocator.put(over)
    await story.tell(over)
    await story.tell_finished()
    await story.until_settled()

    told = await until(lambda: story.said(3))

    assert [(one["type"], one["sequence"]) for one in told] == [
        ("lehr.hold.placed.v1", 1),
        ("lehr.charge.posted.v1", 2),
        ("lehr.charge.settled.v1", 3),
    ]
    assert told[-1]["data"]["total_micros"] == 100_000


async def _swept(story: Story) -> bool:
    """Return whether the sweep has come to the end, so that it puts nothing right any more."""
    async with story.admin.connection() as conn:
        cursor = await conn.fetchval(
            "SELECT cursor_value FROM billing.cursors WHERE cursor_name = 'allocator_leases'"
        )
    return bool(cursor == str(story.allocator.last_number))


async def _held_is(story: Story, amount: str) -> bool:
    return await story.held() == micros(amount)


async def _shift(story: Story, amount: str) -> None:
    async with story.admin.connection() as conn:
        await conn.execute("UPDATE clock.shift SET amount = $1::text::interval", amount)


async def _plant(story: Story, statements: str) -> None:
    async with story.admin.connection() as conn:
        await conn.execute("SET search_path = billing")
        for statement in statements.split(";"):
            values = [story.tenant] if "$1" in statement else []
            await conn.execute(statement, *values)
        await conn.execute("RESET search_path")
