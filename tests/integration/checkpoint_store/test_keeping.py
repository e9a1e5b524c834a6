"""Which checkpoints stay: Best, final, pinned, and the newest few of the others."""

import pytest

from lehr import faults
from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2 as pb
from lehr.errors import FailedPrecondition, InvalidArgument, NotFound
from tests.integration.checkpoint_store.story import FILES, Story, until


async def test_best_survives_pruning_during_the_run_and_after_it(story: Story) -> None:
    await story.open()
    losses = {10: "2.00", 20: "1.20", 30: "1.50", 40: "1.60", 50: "1.70", 60: "1.80"}
    bests = []
    for step, loss in losses.items():
        await story.save(step, loss=loss)
        bests.append(await story.best())

    final = await story.save(70, loss="1.90", is_final=True)

    assert bests == [[10], [20], [20], [20], [20], [20]]
    assert await story.best() == [20]
    assert await story.steps() == [20, 50, 60, 70]
    assert final.is_final
    best = pb.DownloadCheckpointRequest(best_of_job_id=story.job_id)
    assert await story.download(best) == FILES
    events = await story.events("best")
    assert [(one["step"], one["eval_loss"]) for one in events] == [(10, 2.0), (20, 1.2)]


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        (["1.80", "NaN", "1.70", "NaN"], [30]),
        (["NaN", "NaN", "NaN", "NaN"], []),
        (["1.80", "-Infinity", "Infinity", "1.90"], [10]),
        (["1.5", "1.5", "1.5", "1.5"], [10]),
        (["1.5", "1.4999999", "1.5", "1.5"], [20]),
        (["1e-320", "0.0", "-0.0", "5e-324"], [20]),
        (["", "", "", ""], []),
    ],
)
async def test_best_is_the_lowest_finite_loss_and_a_tie_keeps_the_earlier(
    story: Story, losses: list[str], best: list[int]
) -> None:
    await story.open()
    for step, loss in zip((10, 20, 30, 40), losses, strict=True):
        await story.save(step, loss=loss, keep=4)

    assert await story.best() == best
    shown = [one.eval_loss for one in (await story.listed()).checkpoints]
    assert shown == losses


async def test_best_does_not_depend_on_the_order_of_commits(story: Story) -> None:
    await story.open()
    await story.save(20, loss="1.5", keep=4)
    await story.save(10, loss="1.5", keep=4)

    assert await story.best() == [10]


async def test_age_is_the_step_and_not_the_time_of_the_upload(story: Story) -> None:
    await story.open()
    for step in (10100, 9800, 10000, 9700, 9900):
        await story.save(step, keep=3)

    assert await story.steps() == [9900, 10000, 10100]


async def test_pruned_bytes_are_gone_and_the_sum_falls_by_their_size(story: Story) -> None:
    await story.open()
    first = await story.save(10, keep=1)
    before = (await story.listed()).size_bytes

    await story.save(20, keep=1)

    assert (await story.listed()).size_bytes == before == first.size_bytes
    await story.until_removed(first.checkpoint_id)
    deleted = await story.events("deleted")
    assert [(one["step"], one["cause"]) for one in deleted] == [(10, "retention")]
    assert deleted[0]["size_bytes"] == first.size_bytes


async def test_a_pinned_one_is_kept_on_top_until_it_is_unpinned(story: Story) -> None:
    await story.open()
    first = await story.save(10, keep=1)
    await story.pin(first.checkpoint_id)
    await story.save(20, keep=1)
    await story.save(30, keep=1)
    assert await story.steps() == [10, 30]

    with pytest.raises(FailedPrecondition) as refused:
        await story.delete(first.checkpoint_id)
    await story.pin(first.checkpoint_id, is_pinned=False)

    assert refused.value.reason == "CHECKPOINT_PINNED"
    assert await story.steps() == [30]


async def test_the_last_step_becomes_final_without_a_second_upload(story: Story) -> None:
    await story.open()
    ordinary = await story.save(10, loss="1.0")

    begun = await story.announce(10, is_final=True)

    assert (begun.is_committed, begun.checkpoint_id) == (True, ordinary.checkpoint_id)
    final = pb.DownloadCheckpointRequest(final_of_job_id=story.job_id)
    assert await story.download(final) == FILES
    assert [one["is_final"] for one in await story.events("committed")] == [False, True]


async def test_a_job_has_one_final_checkpoint_even_after_a_lost_node(story: Story) -> None:
    await story.open()
    await story.save(10, is_final=True)
    await story.open(epoch=2)

    await story.save(10, epoch=2, is_final=True)

    finals = [one.epoch for one in (await story.listed()).checkpoints if one.is_final]
    assert finals == [2]


async def test_deleting_best_needs_to_be_said_and_its_loss_stays_the_bar(story: Story) -> None:
    await story.open()
    await story.save(10, loss="1.5", keep=4)
    best = await story.save(20, loss="1.2", keep=4)

    with pytest.raises(FailedPrecondition) as refused:
        await story.delete(best.checkpoint_id)
    await story.delete(best.checkpoint_id, allow=True)

    assert refused.value.reason == "CHECKPOINT_PROTECTED"
    assert await story.best() == []
    with pytest.raises(NotFound):
        await story.download(pb.DownloadCheckpointRequest(best_of_job_id=story.job_id))
    await story.save(30, loss="1.3", keep=4)
    await story.save(40, loss="1.2", keep=4)
    assert await story.best() == []
    await story.save(50, loss="1.1", keep=4)
    assert await story.best() == [50]


async def test_deleting_final_needs_to_be_said(story: Story) -> None:
    await story.open()
    final = await story.save(10, is_final=True)

    with pytest.raises(FailedPrecondition) as refused:
        await story.delete(final.checkpoint_id)
    await story.delete(final.checkpoint_id, allow=True)

    assert refused.value.reason == "CHECKPOINT_PROTECTED"
    assert await story.steps() == []


async def test_deleting_twice_is_the_same_as_once(story: Story) -> None:
    await story.open()
    saved = await story.save(10)
    other = await story.save(20)

    await story.delete(saved.checkpoint_id)
    await story.delete(saved.checkpoint_id)
    await story.until_removed(saved.checkpoint_id)
    await story.delete(saved.checkpoint_id)

    assert (await story.listed()).size_bytes == other.size_bytes
    assert len(await story.events("deleted")) == 1


async def test_after_the_newest_is_deleted_resume_takes_the_one_before(story: Story) -> None:
    await story.open()
    await story.save(10)
    newest = await story.save(20)

    await story.delete(newest.checkpoint_id)

    assert (await story.open(epoch=2)).resume_from.step == 10


async def test_a_download_that_was_handed_out_can_be_finished(story: Story) -> None:
    await story.open()
    saved = await story.save(10)
    other = await story.save(20)
    request = pb.DownloadCheckpointRequest(checkpoint_id=saved.checkpoint_id)
    links = (await story.person.DownloadCheckpoint(request)).files

    await story.delete(saved.checkpoint_id)
    await story.delete(other.checkpoint_id)
    await story.until_removed(other.checkpoint_id)

    assert await story.steps() == []
    read = {file.name: (await story.http.get(file.url)).content for file in links}
    assert read == FILES
    await story.until_removed(saved.checkpoint_id)


@pytest.mark.parametrize(
    "point", ["checkpoint_store.remove.after_manifest", "checkpoint_store.remove.after_objects"]
)
async def test_a_store_killed_while_removing_finishes_after_its_restart(
    story: Story, point: str
) -> None:
    await story.open()
    saved = await story.save(10)
    faults.arm(story.service.faults, point, action="kill")
    await story.delete(saved.checkpoint_id)

    async def fault_has_fired() -> bool:
        return faults.fired(story.service.faults, point) == 1

    await until(fault_has_fired)
    await story.restart()

    await story.until_removed(saved.checkpoint_id)
    assert len(await story.events("deleted")) == 1
    faults.disarm(story.service.faults)


async def test_an_abandoned_upload_is_collected_and_a_living_one_is_not(story: Story) -> None:
    await story.open()
    abandoned = await story.announce(10)
    await story.put(abandoned)
    async with story.admin.connection() as conn:
        await conn.execute("UPDATE clock.shift SET amount = amount + '23 hours'")
    living = await story.announce(20)
    async with story.admin.connection() as conn:
        await conn.execute("UPDATE clock.shift SET amount = amount + '2 hours'")

    await story.until_removed(abandoned.checkpoint_id)

    await story.put(living)
    assert (await story.commit(living.checkpoint_id)).step == 20
    events = await story.events("deleted")
    assert [(one["step"], one["cause"]) for one in events] == [(10, "abandoned")]


async def test_uploads_of_a_replaced_run_are_collected(story: Story) -> None:
    await story.open()
    begun = await story.announce(10)
    await story.put(begun)

    await story.open(epoch=2)
    async with story.admin.connection() as conn:
        await conn.execute("UPDATE clock.shift SET amount = amount + '31 seconds'")

    await story.until_removed(begun.checkpoint_id)


async def test_a_flood_of_names_is_refused(story: Story) -> None:
    flood = pb.DownloadCheckpointRequest(best_of_job_id=story.job_id, names=["x"] * 1001)

    with pytest.raises(InvalidArgument, match="names must hold at most 1000"):
        await story.download(flood)
