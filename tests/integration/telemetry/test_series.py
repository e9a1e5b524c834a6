"""Series: no holes, no doubles, only the newest run's word, every value to the last digit."""

import json
import math

import pytest

from lehr import faults
from lehr.api.telemetry.v1 import telemetry_pb2 as pb
from lehr.api.telemetry.v1.telemetry_pb2_grpc import TelemetryServiceStub
from lehr.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied
from lehr.events import subjects
from lehr.ids import new_id
from lehr.rpc.client import raises_platform_errors
from tests.integration.telemetry.story import Story, enveloped, until
from tests.support.servers import NatsForTests, PostgresForTests


async def test_reports_are_stored_and_the_watermark_counts_every_kind(story: Story) -> None:
    assert await story.open() == 0
    await story.say(
        story.losses([1, 2]),
        story.evaluated(3, 2, 1.5, eval_tokens=7.0),
        story.best(4, 2),
        story.losses([3], first=5),
    )
    await story.stored(reports=5)

    points = (await story.query()).points
    assert [(point.step, point.name, point.value) for point in points] == [
        (1, "loss", "1001.0"),
        (2, "eval_loss", "1.5"),
        (2, "eval_tokens", "7.0"),
        (2, "loss", "1002.0"),
        (3, "loss", "1003.0"),
    ]
    assert await story.watermark() == (5, 0)


async def test_values_that_are_not_finite_and_extreme_ones_are_exact(story: Story) -> None:
    values = [1.0, math.nan, math.inf, -math.inf, 0.5, 1e-320, 1e308, -0.0, 0.1 + 0.2, 5e-324]
    await story.open()
    steps = {step: {"loss": value} for step, value in enumerate(values, start=1)}
    await story.say(story.progressed(1, steps))
    await story.stored(reports=len(values))

    told = [point.value for point in (await story.query("loss")).points]

    assert told == [
        *["1.0", "NaN", "Infinity", "-Infinity", "0.5", "1e-320", "1e+308", "-0.0"],
        *["0.30000000000000004", "5e-324"],
    ]
    strict = json.loads(json.dumps(told, allow_nan=False))
    assert [repr(float(text)) for text in strict] == [repr(value) for value in values]


async def test_the_same_message_again_changes_nothing(story: Story) -> None:
    await story.open()
    batch = story.losses([1, 2, 3])
    await story.say(batch, batch, story.losses([4]), batch)
    await story.stored(reports=4)

    assert sorted(await story.series()) == [1, 2, 3, 4]


async def test_out_of_order_messages_raise_the_watermark_only_without_a_gap(story: Story) -> None:
    await story.open()
    await story.say(story.losses([5, 6]), story.losses([3, 4]))

    async def four_are_there() -> bool:
        return len(await story.series()) == 4

    await until(four_are_there)

    assert await story.watermark() == (0, 0)
    await story.say(story.losses([1, 2]))
    await story.stored(reports=6)
    assert sorted(await story.series()) == [1, 2, 3, 4, 5, 6]


async def test_a_later_report_of_one_step_replaces_whatever_comes_first(story: Story) -> None:
    await story.open()
    first = story.progressed(1, {1: {"loss": 1.0}})
    later = story.progressed(2, {1: {"loss": 2.0}})
    await story.say(later)

    async def later_is_there() -> bool:
        return await story.series() == {1: (2.0, 1)}

    await until(later_is_there)
    await story.say(first)
    await story.stored(reports=2)
    assert await later_is_there()
    await story.say(story.progressed(3, {1: {"loss": 3.0}}))
    await story.stored(reports=3)
    assert await story.series() == {1: (3.0, 1)}


async def test_a_resumed_run_supersedes_what_lies_past_its_resume_step(story: Story) -> None:
    await story.open()
    await story.say(story.losses(range(1, 7)))
    await story.stored(reports=6)

    stored_step = await story.open(epoch=2, resume_step=4)
    await story.say(story.losses([5, 6, 7], first=1, epoch=2))
    await story.stored(reports=3, epoch=2)

    assert stored_step == 4
    epochs = {step: epoch for step, (_, epoch) in (await story.series()).items()}
    assert epochs == {1: 1, 2: 1, 3: 1, 4: 1, 5: 2, 6: 2, 7: 2}
    everything = (await story.query("loss", superseded=True)).points
    assert len(everything) == 9


async def test_late_reports_of_a_replaced_run_count_up_to_the_resume_step_only(
    story: Story,
) -> None:
    await story.open()
    await story.say(story.losses([1, 2]))
    await story.stored(reports=2)
    assert await story.open(epoch=2, resume_step=4) == 2
    await story.say(story.losses([5, 6], first=1, epoch=2))

    await story.say(story.losses([3, 4, 5, 6, 7, 8]))
    await story.stored(reports=8)
    await story.stored(reports=2, epoch=2)

    epochs = {step: epoch for step, (_, epoch) in (await story.series()).items()}
    assert epochs == {1: 1, 2: 1, 3: 1, 4: 1, 5: 2, 6: 2}


async def test_a_series_tail_that_is_sent_again_by_a_later_run_is_no_double(story: Story) -> None:
    await story.open()
    await story.say(story.evaluated(1, 0, 3.0), story.losses([1, 2], first=2))
    await story.stored(reports=3)
    await story.open(epoch=2, resume_step=2)

    await story.say(
        story.losses([1, 2], first=1, epoch=2),
        story.evaluated(3, 0, 3.0, epoch=2),
        story.evaluated(4, 1, 2.0, epoch=2),
    )
    await story.stored(reports=4, epoch=2)
    await story.say(story.evaluated(4, 0, 3.0), story.evaluated(5, 1, 2.0))
    await story.stored(reports=5)

    assert {step: epoch for step, (_, epoch) in (await story.series()).items()} == {1: 2, 2: 2}
    assert {step: epoch for step, (_, epoch) in (await story.series("eval_loss")).items()} == {
        0: 2,
        1: 2,
    }


async def test_open_is_fenced_and_repeatable(story: Story) -> None:
    await story.open(epoch=3, resume_step=2)
    assert await story.open(epoch=3, resume_step=2) == 0

    with pytest.raises(FailedPrecondition) as old:
        await story.open(epoch=2)
    with pytest.raises(FailedPrecondition) as other:
        await story.open(epoch=3, resume_step=9)

    assert (old.value.reason, other.value.reason) == ("FENCED", "RUN_DIFFERS")


async def test_a_page_ends_with_a_whole_step_and_paging_loses_nothing(story: Story) -> None:
    await story.open()
    values = {"a": 1.0, "b": 2.0, "c": 3.0}
    await story.say(story.progressed(1, {step: dict(values) for step in range(1, 8)}))
    await story.stored(reports=7)

    seen, after_step, has_more, sizes = [], -1, True, []
    while has_more:
        page = await story.query(after_step=after_step, limit=7)
        seen += [(point.step, point.name) for point in page.points]
        sizes.append(len(page.points))
        after_step, has_more = page.points[-1].step, page.has_more

    assert seen == [(step, name) for step in range(1, 8) for name in "abc"]
    assert sizes == [6, 6, 6, 3]
    wide = await story.query(after_step=-1, limit=2)
    assert ([point.step for point in wide.points], wide.has_more) == ([1, 1, 1], True)
    last = await story.query(after_step=6, limit=1)
    assert ([point.step for point in last.points], last.has_more) == ([7, 7, 7], False)


async def test_only_the_series_that_are_asked_for_come(story: Story) -> None:
    await story.open()
    await story.say(story.progressed(1, {1: {"loss": 1.0, "grad_norm": 2.0, "lr\0": 3.0}}))
    await story.stored(reports=1)

    points = (await story.query("grad_norm", "lr\0", "nothing")).points

    assert [(point.name, point.value) for point in points] == [
        ("grad_norm", "2.0"),
        ("lr\\x00", "3.0"),
    ]


async def test_a_report_before_its_run_is_opened_is_stored_once_it_is(story: Story) -> None:
    await story.say(story.losses([1, 2]))
    await story.open()

    await story.stored(reports=2)

    assert sorted(await story.series()) == [1, 2]


async def test_poison_goes_to_the_dead_letters_and_its_neighbours_are_stored(story: Story) -> None:
    await story.open()
    stream = story.bus.jetstream()
    foreign = story.losses([1], first=9).model_copy(update={"epoch": 7})
    backward = story.losses([1]).model_copy(update={"first_sequence": 5, "last_sequence": 2})
    deep = story.progressed(1, {2**40: {"loss": 1.0}})
    before = (await stream.stream_info("DLQ")).state.messages
    await stream.publish("evt.run.best.v1.acme.run_x", b"{not json")
    await stream.publish("evt.run.progressed.v1.acme.run_x", enveloped(story.best(1, 1)))
    await story.say(foreign, backward, deep, story.losses([1, 2]))

    await story.stored(reports=2)

    async def four_are_parked() -> bool:
        return (await stream.stream_info("DLQ")).state.messages == before + 4

    await until(four_are_parked)
    assert sorted(await story.series()) == [1, 2]


@pytest.mark.parametrize("point", ["telemetry.runs.before_commit", "telemetry.runs.before_ack"])
async def test_a_process_killed_in_a_batch_loses_and_doubles_nothing(
    story: Story, point: str
) -> None:
    await story.open()
    faults.arm(story.service.faults, point, action="kill")
    await story.say(story.losses([1, 2, 3]))

    async def has_died() -> bool:
        return faults.fired(story.service.faults, point) == 1

    await until(has_died)
    await story.restart()

    # The runner's spool does not wait for ack_wait.
    await story.say(story.losses([4]), story.losses([1, 2, 3]))
    await story.stored(reports=4)
    assert sorted(await story.series()) == [1, 2, 3, 4]
    faults.disarm(story.service.faults)


async def test_an_outage_of_the_database_is_waited_for_and_parks_nothing(
    story: Story, postgres_server: PostgresForTests
) -> None:
    await story.open()
    stream = story.bus.jetstream()
    before = (await stream.stream_info("DLQ")).state.messages
    held_before = story.service.log.read_text().count("batch_retried")

    async def is_held() -> bool:
        return story.service.log.read_text().count("batch_retried") > held_before + 2

    postgres_server.control.stop()
    try:
        await story.say(story.losses([1, 2]), story.losses([3]))
        await until(is_held, within=60)
    finally:
        postgres_server.control.start()

    async def all_are_stored() -> bool:
        try:
            return await story.watermark() == (3, 0)
        except Exception:  # the process is finding its way back.
            return False

    await until(all_are_stored, within=45)
    assert sorted(await story.series()) == [1, 2, 3]
    assert (await stream.stream_info("DLQ")).state.messages == before


async def test_an_outage_of_nats_is_waited_for(story: Story, nats_server: NatsForTests) -> None:
    await story.open()
    await story.say(story.losses([1]))
    await story.stored(reports=1)
    nats_server.control.stop()
    nats_server.control.start()

    async def is_said() -> bool:
        try:
            await story.say(story.losses([2]))
        except Exception:  # this connection is finding its way back, too.
            return False
        return True

    await until(is_said)
    await story.stored(reports=2)


async def test_another_tenant_or_project_sees_nothing(story: Story) -> None:
    await story.open()
    await story.say(story.losses([1]), story.logged(1, ["hello"]))
    await story.stored(reports=1, lines=1)

    await assert_blind(story, tenant="other", project="default")
    await assert_blind(story, tenant="acme", project="side")

    async with story.service.called_by("trainer_runner", tenant="other") as channel:
        stub = TelemetryServiceStub(channel)
        with pytest.raises(NotFound), raises_platform_errors():
            await stub.GetWatermark(pb.GetWatermarkRequest(run_id=story.run_id()))
    async with story.service.called_by("trainer_runner", project="side") as channel:
        request = pb.OpenSeriesRequest(job_id=story.job_id, run_id=new_id("run"), epoch=9)
        with pytest.raises(NotFound), raises_platform_errors():
            await TelemetryServiceStub(channel).OpenSeries(request)
    assert len(await story.series()) == 1


async def assert_blind(story: Story, *, tenant: str, project: str) -> None:
    """Read with the ids of somebody else."""
    async with story.service.called_by("gateway", tenant=tenant, project=project) as channel:
        stub = TelemetryServiceStub(channel)
        points = await stub.QueryMetrics(pb.QueryMetricsRequest(job_id=story.job_id))
        lines = await stub.ReadLogs(pb.ReadLogsRequest(job_id=story.job_id))
        assert (list(points.points), list(lines.lines)) == ([], [])


async def test_a_forged_event_of_another_tenant_writes_nothing(story: Story) -> None:
    await story.open()
    forged = story.losses([1]).model_copy(update={"tenant": "other"})
    await story.bus.jetstream().publish(subjects.build(forged), enveloped(forged))
    await story.say(story.losses([2], first=1))
    await story.stored(reports=1)

    assert sorted(await story.series()) == [2]


async def test_people_may_not_call_what_is_for_runners(story: Story) -> None:
    with pytest.raises(PermissionDenied), raises_platform_errors():
        await story.person.GetWatermark(pb.GetWatermarkRequest(run_id=story.run_id()))


async def test_an_unknown_run_and_a_malformed_id_are_told_apart(story: Story) -> None:
    with pytest.raises(NotFound):
        await story.watermark()
    with pytest.raises(InvalidArgument), raises_platform_errors():
        await story.person.QueryMetrics(pb.QueryMetricsRequest(job_id="job_1"))


async def test_a_flood_of_names_or_levels_is_refused_by_name(story: Story) -> None:
    with pytest.raises(InvalidArgument, match="names must hold at most 100"):
        await story.query(*["loss"] * 101)
    with pytest.raises(InvalidArgument, match="levels must hold at most 100"):
        await story.logs(levels=["info"] * 101)
