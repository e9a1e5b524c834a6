"""Events about leases and jobs: once, again and again, late, out of order, and wrong."""

import asyncio
from collections.abc import Callable

import pytest

from lehr.events import codec
from tests.integration.billing.story import Story, until


async def test_a_lease_that_is_over_is_charged_to_the_second(story: Story) -> None:
    await story.hold(tiers=["video"])

    await story.tell(story.closed(0, 180.9, tier="video"))

    cost = await story.until_cost("0.09", seconds=180)
    assert [(line.tier, line.gpu_count) for line in cost.lines] == [("video", 1)]


async def test_four_deliveries_of_each_event_in_two_bursts_are_one(story: Story) -> None:
    await story.hold(tiers=["video"])
    running = story.lease(0, alive=60, tier="video")
    over = story.later(running, phase=story.closed(0, 1).phase, close_reason="COMPLETED",
                       end_time=180)  # fmt: skip

    first = await story.tell(running, times=2)
    second = await story.tell(over, times=2)
    await story.told(0)
    await story.tell(running, times=2, event_id=first)
    await story.tell(over, times=2, event_id=second)
    another = story.closed(200, 260, tier="video")
    await story.tell(another)

    cost = await story.until_cost("0.12", seconds=240)
    await story.told(0)
    assert await story.booked() == cost.total.micros
    assert len(cost.lines) == 1
    assert await story.taken_in(first, second) == 2


async def test_the_same_news_under_other_event_ids_is_counted_once(story: Story) -> None:
    await story.hold()
    over = story.closed(0, 100)

    for _ in range(3):
        await story.tell(over)
    await story.told(0)

    await story.until_cost("0.10", seconds=100)
    assert await story.kinds() == ["hold", "charge"]


async def test_versions_out_of_order_end_where_the_newest_is(story: Story) -> None:
    await story.hold()
    granted = story.lease(None, version=1)
    running = story.later(granted, running_time=0, alive_time=1)
    stopped = story.later(running, stop_time=50, alive_time=52)
    over = story.later(stopped, end_time=51, phase=story.closed(0, 1).phase,
                       close_reason="USER_STOPPED")  # fmt: skip

    for lease in (stopped, over, granted, running):
        await story.tell(lease)
    await story.told(0)

    await story.until_cost("0.05", seconds=50)


async def test_a_gap_in_the_versions_loses_nothing(story: Story) -> None:
    await story.hold()

    await story.tell(story.lease(None, version=1))
    await story.tell(story.closed(0, 30, version=17))

    await story.until_cost("0.03", seconds=30)


async def test_an_older_version_with_a_later_end_changes_nothing(story: Story) -> None:
    await story.hold()
    over = story.closed(0, 30)
    await story.tell(over)
    await story.until_cost("0.03")

    await story.tell(story.later(over, version=8, end_time=3000))
    await story.told(0)

    await story.until_cost("0.03", seconds=30)


async def test_a_finished_job_is_settled_whatever_comes_first(story: Story) -> None:
    await story.hold("10")
    over = story.closed(0, 100, "USER_STOPPED")
    running = story.lease(0, alive=90, lease_id=over.lease_id, epoch=over.epoch)
    await story.tell(running)
    story.allocator.put(over)

    await story.tell_finished()

    settled = await story.until_settled()
    assert (settled.total.micros, settled.billed_seconds) == (100_000, 100)
    assert await story.held() == 0
    assert (await story.kinds())[-1] == "release"


async def test_a_job_with_an_open_lease_is_settled_when_that_closes(story: Story) -> None:
    await story.hold("10")
    lost = story.lease(0, 30, phase="LOST", close_reason="NODE_LOST", alive=30, committed=20)
    story.allocator.put(lost)
    await story.tell(lost)
    await story.tell_finished()
    await story.told(0)
    assert await story.held() == 10_000_000 - 20_000

    over = story.later(lost, phase=story.closed(0, 1).phase)
    story.allocator.put(over)
    await story.tell(over)

    settled = await story.until_settled()
    assert settled.billed_seconds == 20
    assert await story.held() == 0


async def test_finishing_twice_releases_once(story: Story) -> None:
    await story.hold("10")
    await story.tell(story.closed(0, 100))

    await asyncio.gather(*(story.tell_finished() for _ in range(4)))
    await story.until_settled()
    await story.told(0)

    assert (await story.kinds()).count("release") == 1


async def test_the_end_of_the_run_before_does_not_settle_a_resumed_job(story: Story) -> None:
    await story.hold("10")
    await story.tell(story.closed(0, 100, "USER_STOPPED"))
    await story.tell_finished(version=5)
    await story.until_settled()
    await story.hold("10", ordinal=2)

    await story.tell_finished(version=6, after=-1)
    await story.told(0)
    await asyncio.sleep(1.2)

    assert await story.held() == 9_900_000
    assert (await story.cost()).is_provisional


@pytest.mark.parametrize(
    "break_it",
    [
        lambda body: body.replace(b'"RUNNING"', b'"DREAMING"'),
        lambda body: body[:-1],
        lambda body: body.replace(b'"gpu_count":1', b'"gpu_count":0'),
        lambda body: body.replace(b"lehr.lease.phase.v1", b"lehr.lease.dreamt.v1"),
    ],
)
async def test_what_cannot_be_an_event_is_parked_and_the_next_one_counts(
    story: Story, break_it: Callable[[bytes], bytes]
) -> None:
    await story.hold()
    body = await _body_of_a_running_lease(story)
    parked = await _parked(story)

    await story.publish(f"evt.lease.phase.v1.{story.tenant}.lease_x", break_it(body))
    await story.tell(story.closed(0, 100))

    await story.until_cost("0.10", seconds=100)
    await until(lambda: _parked_is(story, parked + 1))


async def test_a_forged_lease_of_another_tenant_cannot_change_a_bill(story: Story) -> None:
    await story.hold()
    over = story.closed(0, 30)
    await story.tell(over)
    await story.until_cost("0.03")

    await story.tell(story.later(over, tenant="stranger", version=99, end_time=3000))
    await story.told(0)

    await story.until_cost("0.03", seconds=30)


async def _body_of_a_running_lease(story: Story) -> bytes:
    await story.tell(story.lease(0, alive=1))
    context = story.bus.jetstream()
    last = (await context.stream_info("LEASES")).state.last_seq
    body = (await context.get_msg("LEASES", last)).data or b""
    assert codec.peek(body)["type"] == "lehr.lease.phase.v1"
    return body.replace(codec.peek(body)["id"].encode(), b"0198a6f0-0000-7000-8000-%012d" % last)


async def _parked(story: Story) -> int:
    found = await story.bus.jetstream().stream_info("DLQ")
    return found.state.messages


async def _parked_is(story: Story, count: int) -> bool:
    return await _parked(story) == count
