"""Logs: exact text, in order, by page and by filter."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from lehr import faults
from lehr.errors import InvalidArgument
from tests.integration.telemetry.story import Story, until


def stamp(time: datetime) -> Timestamp:
    made = Timestamp()
    made.FromDatetime(time)
    return made


async def test_text_is_kept_to_the_character(story: Story) -> None:
    printed = [
        "plain",
        "",
        "  leading and trailing  ",
        "tab\tand \x1b[31mcolour\x1b[0m and \r return",
        "\u00e9 \u4e16 \U0001f600 \u0301 \u200d \ufeff \ufffd",
        "bad bytes \\xff\\xfe were escaped by the runner",
        "'); DROP TABLE log_lines; --",
        "x" * 100_000,
    ]
    await story.open()
    await story.say(story.logged(1, printed))
    await story.stored(lines=len(printed))

    assert await story.texts() == printed


async def test_a_nul_is_shown_escaped_and_the_rest_of_the_line_is_kept(story: Story) -> None:
    await story.open()
    await story.say(story.logged(1, ["a\0b", "after"]))
    await story.stored(lines=2)

    assert await story.texts() == ["a\\x00b", "after"]


async def test_lines_keep_their_order_however_they_arrive(story: Story) -> None:
    await story.open()
    batches = [story.logged(first, [str(first), str(first + 1)]) for first in range(1, 40, 2)]
    shuffled = [*batches, *batches[::3]]
    random.Random(7).shuffle(shuffled)  # noqa: S311 - a shuffle, no secret
    await story.say(*shuffled)
    await story.stored(lines=40)

    lines = (await story.logs()).lines

    assert [line.text for line in lines] == [str(number) for number in range(1, 41)]
    assert sorted({line.cursor for line in lines}) == [line.cursor for line in lines]


async def test_lines_behind_a_gap_are_not_shown_before_it_is_filled(story: Story) -> None:
    await story.open()
    await story.say(story.logged(1, ["one"]), story.logged(3, ["three"]))
    await story.stored(lines=1)

    assert await story.texts() == ["one"]
    await story.say(story.logged(2, ["two"]))
    await story.stored(lines=3)
    assert await story.texts() == ["one", "two", "three"]


async def test_a_line_that_never_comes_does_not_hide_the_others_for_ever(story: Story) -> None:
    await story.open()
    await story.say(story.logged(2, ["two", "three"]))

    async def is_received() -> bool:
        async with story.admin.connection() as conn:
            counted = await conn.fetchval(
                "SELECT count(*) FROM telemetry.log_lines WHERE job_id = $1", story.job_id
            )
            return bool(counted == 2)

    await until(is_received)
    async with story.admin.connection() as conn:
        await conn.execute("UPDATE clock.shift SET amount = amount + '31 minutes'")

    async def are_shown() -> bool:
        return await story.texts() == ["two", "three"]

    await until(are_shown)
    await story.say(story.logged(4, ["four"]))

    async def four_follows_at_once() -> bool:
        return await story.texts() == ["two", "three", "four"]

    await until(four_follows_at_once)
    assert await story.watermark() == (0, 0)
    await story.say(story.logged(1, ["one, late"]))
    await story.stored(lines=4)
    assert await story.texts() == ["two", "three", "four", "one, late"]


async def test_two_runs_of_a_job_make_one_log(story: Story) -> None:
    await story.open()
    await story.say(story.logged(1, ["first run"]))
    await story.stored(lines=1)
    await story.open(epoch=2)
    await story.say(story.logged(1, ["second run"], epoch=2))
    await story.stored(lines=1, epoch=2)

    lines = (await story.logs()).lines

    assert [(line.text, line.run_id) for line in lines] == [
        ("first run", story.run_id(1)),
        ("second run", story.run_id(2)),
    ]


async def test_paging_with_filters_has_no_gaps_and_a_silence_hides_nothing(story: Story) -> None:
    day = datetime(2026, 3, 1, tzinfo=UTC)
    times = [
        day + timedelta(hours=3),
        day + timedelta(hours=3, minutes=1),
        day + timedelta(hours=14),
    ]
    await story.open()
    await story.say(
        story.logged(1, ["three", "noise"], time=times[0], level="info"),
        story.logged(3, ["one past three"], time=times[1], level="warning"),
        story.logged(4, ["two p.m."] * 5, time=times[2], level="info"),
    )
    await story.stored(lines=8)

    seen, after_cursor, has_more = [], 0, True
    while has_more:
        page = await story.logs(after_cursor=after_cursor, limit=3)
        seen += [line.text for line in page.lines]
        after_cursor, has_more = page.lines[-1].cursor, page.has_more

    assert seen == ["three", "noise", "one past three", *["two p.m."] * 5]
    assert await story.texts(from_time=stamp(times[1])) == seen[2:]
    assert await story.texts(to_time=stamp(times[1])) == seen[:2]
    both = {"from_time": stamp(times[1]), "to_time": stamp(times[2])}
    assert await story.texts(**both) == ["one past three"]
    assert await story.texts(levels=["warning", "error"]) == ["one past three"]
    assert await story.texts(levels=["warning"], from_time=stamp(times[2])) == []
    after = await story.logs(levels=["info"], from_time=stamp(times[2]), limit=2)
    assert ([line.text for line in after.lines], after.has_more) == (["two p.m."] * 2, True)


async def test_a_page_of_huge_lines_fits_into_a_message(story: Story) -> None:
    await story.open()
    huge = ["x" * 900_000 + str(number) for number in range(20)]
    await story.say(*(story.logged(place + 1, [text]) for place, text in enumerate(huge)))
    await story.stored(lines=20)

    seen, after_cursor, has_more, pages = [], 0, True, 0
    while has_more:
        page = await story.logs(after_cursor=after_cursor)
        seen += [line.text for line in page.lines]
        after_cursor, has_more, pages = page.lines[-1].cursor, page.has_more, pages + 1

    assert seen == huge
    assert pages == 4


@pytest.mark.parametrize("point", ["telemetry.logs.before_commit", "telemetry.logs.before_ack"])
async def test_a_process_killed_in_a_batch_loses_and_doubles_no_line(
    story: Story, point: str
) -> None:
    await story.open()
    faults.arm(story.service.faults, point, action="kill")
    await story.say(story.logged(1, ["one", "two"]))

    async def has_died() -> bool:
        return faults.fired(story.service.faults, point) == 1

    await until(has_died)
    await story.restart()

    await story.say(story.logged(1, ["one", "two"]), story.logged(3, ["three"]))
    await story.stored(lines=3)
    assert await story.texts() == ["one", "two", "three"]
    faults.disarm(story.service.faults)


async def test_a_poisoned_message_is_parked_and_its_neighbours_are_stored(story: Story) -> None:
    await story.open()
    stream = story.bus.jetstream()
    await stream.publish("evt.run.logged.v1.acme.run_x", b"[]")
    zero = story.logged(0, ["no line has this number"])
    await story.say(zero, story.logged(1, ["one"]))

    await story.stored(lines=1)

    async def two_are_parked() -> bool:
        return (await stream.stream_info("DLQ")).state.messages >= 2

    await until(two_are_parked)
    assert await story.texts() == ["one"]


async def test_a_time_that_is_none_is_refused_by_name(story: Story) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await story.logs(from_time=Timestamp(seconds=2**60))

    assert refused.value.fields[0].field == "from_time"
