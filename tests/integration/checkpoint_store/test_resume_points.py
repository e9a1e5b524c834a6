"""Open: one fence a job, and a resume point that verifies."""

import asyncio

import pytest

from lehr import faults
from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2 as pb
from lehr.errors import FailedPrecondition, PlatformError, Unavailable
from lehr.rpc.client import raises_platform_errors
from tests.integration.checkpoint_store.story import FILES, WEIGHTS_ONLY, Story
from tests.support.servers import ObjectsForTests


async def test_a_new_job_starts_afresh(story: Story) -> None:
    opened = await story.open()

    assert not opened.HasField("resume_from")
    assert list(opened.skipped) == []


async def test_a_resumed_run_gets_the_newest_step_and_can_read_it(story: Story) -> None:
    await story.open()
    await story.save(10)
    newest = await story.save(20)

    opened = await story.open(epoch=2)

    assert opened.resume_from.checkpoint_id == newest.checkpoint_id
    read = {file.name: (await story.http.get(file.url)).content for file in opened.files}
    assert read == FILES


async def test_open_again_gives_the_same_answer(story: Story) -> None:
    await story.open()
    await story.save(10)
    await story.save(20)
    first = await story.open(epoch=2)
    await story.save(30, epoch=2)

    again = await story.open(epoch=2)

    assert again.resume_from.checkpoint_id == first.resume_from.checkpoint_id


async def test_a_store_killed_within_open_keeps_the_fence_and_answers_when_asked_again(
    story: Story,
) -> None:
    await story.open()
    begun = await story.announce(10)
    await story.put(begun)
    faults.arm(story.service.faults, "checkpoint_store.open.after_fence", action="kill")
    with pytest.raises(PlatformError):
        await story.open(epoch=2)
    faults.disarm(story.service.faults)
    await story.restart()

    with pytest.raises(FailedPrecondition) as refused:
        await story.commit(begun.checkpoint_id, epoch=1)

    assert refused.value.reason == "FENCED"
    assert not (await story.open(epoch=2)).HasField("resume_from")


async def test_a_replaced_run_has_no_effect_any_more(story: Story) -> None:
    await story.open(epoch=7)
    await story.save(10, epoch=7)
    late = await story.announce(20, epoch=7)
    await story.put(late)
    await story.open(epoch=9)

    with pytest.raises(FailedPrecondition) as commit:
        await story.commit(late.checkpoint_id, epoch=7)
    with pytest.raises(FailedPrecondition) as begin:
        await story.announce(30, epoch=7)
    with pytest.raises(FailedPrecondition) as reopen:
        await story.open(epoch=7)
    with pytest.raises(FailedPrecondition) as borrowed:
        await story.commit(late.checkpoint_id, epoch=9)

    reasons = {refused.value.reason for refused in (commit, begin, reopen, borrowed)}
    assert reasons == {"FENCED"}
    assert await story.steps() == [10]


async def test_of_two_writers_of_one_step_the_newer_run_wins_whole(story: Story) -> None:
    await story.open(epoch=1)
    old = await story.announce(10, epoch=1)
    await story.put(old)
    faults.arm(story.service.faults, "checkpoint_store.commit.after_manifest", action="hang")
    commit = asyncio.create_task(story.commit(old.checkpoint_id, epoch=1))
    await asyncio.sleep(0.3)
    await story.open(epoch=2)
    faults.disarm(story.service.faults)

    with pytest.raises(FailedPrecondition) as refused:
        await commit
    won = await story.save(10, epoch=2)

    assert refused.value.reason == "FENCED"
    assert [one.checkpoint_id for one in (await story.listed()).checkpoints] == [won.checkpoint_id]


@pytest.mark.parametrize("name", ["optimizer.safetensors", "manifest.json"])
async def test_resume_falls_back_when_an_object_is_gone_and_says_so(
    story: Story, name: str
) -> None:
    await story.open()
    good = await story.save(10)
    bad = await story.save(20)
    await story.objects.delete([story.key(bad.checkpoint_id, name)])

    opened = await story.open(epoch=2)

    assert opened.resume_from.checkpoint_id == good.checkpoint_id
    assert len(opened.skipped) == 1
    assert "step 20" in opened.skipped[0]
    assert name in opened.skipped[0]
    assert await story.steps() == [10]


@pytest.mark.parametrize("content", [b"{}", b'{"step": 2}'], ids=["shorter", "same_size"])
async def test_resume_falls_back_when_a_file_has_changed(story: Story, content: bytes) -> None:
    await story.open()
    good = await story.save(10)
    bad = await story.save(20)
    await story.objects.put_bytes(story.key(bad.checkpoint_id, "trainer_state.json"), content)

    opened = await story.open(epoch=2)

    assert opened.resume_from.checkpoint_id == good.checkpoint_id
    assert "trainer_state.json" in opened.skipped[0]


async def test_with_two_broken_ones_resume_takes_the_third_newest_and_names_both(
    story: Story,
) -> None:
    await story.open()
    saved = [await story.save(step, keep=3) for step in (10, 20, 30)]
    for broken in saved[1:]:
        key = story.key(broken.checkpoint_id, "optimizer.safetensors")
        await story.objects.put_bytes(key, b"rubbish")

    opened = await story.open(epoch=2)

    assert opened.resume_from.step == 10
    assert [line.partition(":")[0] for line in opened.skipped] == ["step 30", "step 20"]
    assert list((await story.open(epoch=2)).skipped) == list(opened.skipped)


async def test_with_none_left_resume_is_refused_and_nothing_is_deleted(story: Story) -> None:
    await story.open()
    saved = await story.save(10)
    name = "optimizer.safetensors"
    await story.objects.delete([story.key(saved.checkpoint_id, name)])

    with pytest.raises(FailedPrecondition) as refused:
        await story.open(epoch=2)

    assert refused.value.reason == "NO_CHECKPOINT_VERIFIES"
    assert "step 10" in refused.value.message
    await story.objects.put_bytes(story.key(saved.checkpoint_id, name), FILES[name])
    assert (await story.open(epoch=3)).resume_from.step == 10


async def test_an_outage_of_storage_is_not_taken_for_a_broken_checkpoint(
    story: Story, s3: ObjectsForTests
) -> None:
    await story.open()
    await story.save(10)
    s3.control.stop()
    request = pb.OpenRequest(job_id=story.job_id, epoch=2)
    try:
        with pytest.raises(Unavailable), raises_platform_errors():
            await story.runner.Open(request, timeout=30)
    finally:
        s3.control.start()

    assert (await story.open(epoch=2)).resume_from.step == 10


async def test_weights_alone_are_shown_as_not_resumable_and_never_resumed_from(
    story: Story,
) -> None:
    await story.open()
    full = await story.save(10)
    weights = await story.save(20, files=WEIGHTS_ONLY, is_resumable=True)

    assert [one.is_resumable for one in (await story.listed()).checkpoints] == [True, False]
    assert weights.is_resumable is False
    assert (await story.open(epoch=2)).resume_from.checkpoint_id == full.checkpoint_id


async def test_what_lies_past_the_resume_point_leaves_the_series(story: Story) -> None:
    await story.open()
    await story.save(10, loss="2.0")
    beyond = await story.save(20, loss="1.0", files=WEIGHTS_ONLY)
    pinned = await story.save(25, loss="0.5", files=WEIGHTS_ONLY)
    await story.pin(pinned.checkpoint_id)

    await story.open(epoch=2)

    assert await story.steps() == [10, 25]
    assert await story.best() == [10]
    await story.until_removed(beyond.checkpoint_id)
    await story.save(20, epoch=2, loss="1.5")
    assert await story.best() == [20]
    deleted = await story.events("deleted")
    assert [(one["step"], one["cause"]) for one in deleted] == [(20, "superseded")]


async def test_a_resume_source_is_not_deleted_until_the_run_has_saved(story: Story) -> None:
    await story.open()
    source = await story.save(10)
    await story.open(epoch=2)

    with pytest.raises(FailedPrecondition) as refused:
        await story.delete(source.checkpoint_id)

    assert refused.value.reason == "CHECKPOINT_IN_USE"
    await story.save(20, epoch=2)
    await story.delete(source.checkpoint_id)
    assert await story.steps() == [20]


async def test_the_scheduler_is_told_what_open_would_choose_and_nothing_changes(
    story: Story,
) -> None:
    nothing = await story.find()
    await story.open()
    await story.save(10)
    newest = await story.save(20)
    before = await _rows(story)

    found = await story.find()

    assert not nothing.HasField("resume_from")
    assert found.resume_from == await story.get(newest.checkpoint_id)
    assert await _rows(story) == before
    await story.save(30)
    assert (await story.open(epoch=2)).resume_from.step == (await story.find()).resume_from.step


@pytest.mark.parametrize("how", ["gone", "shorter", "flipped"])
@pytest.mark.parametrize("name", ["manifest.json", *FILES])
async def test_a_checkpoint_with_any_broken_object_is_passed_over_and_named(
    story: Story, name: str, how: str
) -> None:
    await story.open()
    await story.save(10)
    await story.spoil(await story.save(20), name, how)

    found = await story.find()

    assert found.resume_from.step == 10
    assert [(words.partition(":")[0], name in words) for words in found.skipped] == [
        ("step 20", True)
    ]
    assert list((await story.open(epoch=2)).skipped) == list(found.skipped)


async def test_with_none_left_the_scheduler_is_refused_with_every_step(story: Story) -> None:
    await story.open()
    for step, how in ((10, "gone"), (20, "shorter"), (30, "flipped")):
        await story.spoil(await story.save(step, keep=3), "optimizer.safetensors", how)

    with pytest.raises(FailedPrecondition, match=r"step 30.*step 20.*step 10") as refused:
        await story.find()

    assert refused.value.reason == "NO_CHECKPOINT_VERIFIES"
    assert await story.steps() == [10, 20, 30]


async def test_a_refusal_over_very_many_checkpoints_still_reaches_its_caller(story: Story) -> None:
    await story.open()
    for step in range(1, 71):
        await story.spoil(await story.save(step, keep=1000), "trainer_state.json", "flipped")

    with pytest.raises(FailedPrecondition) as refused:
        await story.find()

    assert refused.value.reason == "NO_CHECKPOINT_VERIFIES"
    assert "likewise steps 67, 66" in refused.value.message
    assert refused.value.message.endswith("and 17 more")


async def test_weights_alone_are_nothing_to_resume_from(story: Story) -> None:
    await story.open()
    await story.save(10, files=WEIGHTS_ONLY)
    only_weights = await story.find()
    await story.save(20)
    await story.save(30, files=WEIGHTS_ONLY)

    assert not only_weights.HasField("resume_from")
    assert (await story.find()).resume_from.step == 20


async def test_an_outage_of_storage_refuses_nothing_for_good(
    story: Story, s3: ObjectsForTests
) -> None:
    await story.open()
    await story.save(10)
    s3.control.stop()
    try:
        with pytest.raises(Unavailable):
            await story.find()
    finally:
        s3.control.start()

    assert (await story.find()).resume_from.step == 10


async def _rows(story: Story) -> list[object]:
    """Return everything that is stored of jobs and checkpoints."""
    async with story.admin.connection() as conn:
        return [
            await conn.fetch(f"SELECT * FROM checkpoint_store.{table}")  # noqa: S608
            for table in ("jobs", "checkpoints")
        ]
