"""Begin, upload, commit: visible only when every byte is there and right."""

import asyncio
from typing import Any

import pytest

from lehr import faults
from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2 as pb
from lehr.api.checkpoint_store.v1.checkpoint_store_pb2_grpc import CheckpointStoreServiceStub
from lehr.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PlatformError,
    Unavailable,
)
from lehr.rpc.client import raises_platform_errors
from tests.integration.checkpoint_store.story import FILES, Story, until


async def test_a_saved_checkpoint_is_listed_and_downloads_with_plain_http(story: Story) -> None:
    await story.open()

    saved = await story.save(10, loss="1.5")

    listed = await story.listed()
    assert [one.checkpoint_id for one in listed.checkpoints] == [saved.checkpoint_id]
    assert listed.size_bytes == sum(len(content) for content in FILES.values())
    assert (saved.is_best, saved.is_resumable, saved.eval_loss) == (True, True, "1.5")
    assert all(file.url == "" for file in listed.checkpoints[0].files)
    which = pb.DownloadCheckpointRequest(checkpoint_id=saved.checkpoint_id)
    assert await story.download(which) == FILES
    best = pb.DownloadCheckpointRequest(best_of_job_id=story.job_id, names=["adapter_config.json"])
    assert await story.download(best) == {"adapter_config.json": b"{}"}


async def test_nothing_is_listed_while_files_are_on_their_way(story: Story) -> None:
    await story.open()
    begun = await story.announce(10)
    await story.put(begun)

    assert await story.steps() == []
    assert (await story.get(begun.checkpoint_id)).state == pb.CHECKPOINT_STATE_UPLOADING
    with pytest.raises(FailedPrecondition) as refused:
        await story.download(pb.DownloadCheckpointRequest(checkpoint_id=begun.checkpoint_id))
    assert refused.value.reason == "CHECKPOINT_STATE_FORBIDS"


@pytest.mark.parametrize(
    ("damaged", "content"),
    [
        ("optimizer.safetensors", FILES["optimizer.safetensors"][:-1]),
        ("optimizer.safetensors", b"N" + FILES["optimizer.safetensors"][1:]),
        ("adapter_config.json", b"[]"),
    ],
    ids=["truncated", "flipped_byte", "same_size_other_content"],
)
async def test_a_file_that_is_not_what_was_announced_is_refused_by_name(
    story: Story, damaged: str, content: bytes
) -> None:
    await story.open()
    begun = await story.announce(10)
    await story.put(begun, FILES | {damaged: content})

    with pytest.raises(FailedPrecondition) as refused:
        await story.commit(begun.checkpoint_id)

    assert refused.value.reason == "CHECKSUM_MISMATCH"
    assert refused.value.facts["file"] == damaged
    assert await story.steps() == []
    await story.put(begun)
    assert (await story.commit(begun.checkpoint_id)).step == 10


async def test_a_missing_file_is_refused_by_name_and_a_retry_completes(story: Story) -> None:
    await story.open()
    begun = await story.announce(10)
    await story.put(begun)
    await story.objects.delete([story.key(begun.checkpoint_id, "trainer_state.json")])

    with pytest.raises(FailedPrecondition) as refused:
        await story.commit(begun.checkpoint_id)

    assert (refused.value.reason, refused.value.facts["file"]) == (
        "FILE_MISSING",
        "trainer_state.json",
    )
    again = await story.announce(10)
    assert again.checkpoint_id == begun.checkpoint_id
    await story.put(again)
    assert (await story.commit(again.checkpoint_id)).step == 10


@pytest.mark.parametrize(
    "point",
    [
        "checkpoint_store.begin.after_row",
        "checkpoint_store.commit.before_manifest",
        "checkpoint_store.commit.after_manifest",
        "checkpoint_store.commit.after_row",
    ],
)
async def test_a_store_killed_anywhere_in_a_save_ends_with_one_whole_checkpoint(
    story: Story, point: str
) -> None:
    await story.open()
    faults.arm(story.service.faults, point, action="kill")
    with pytest.raises(PlatformError):
        await story.save(10)
    faults.disarm(story.service.faults)
    await story.restart()

    begun = await story.announce(10)
    await story.put(begun)
    saved = await story.commit(begun.checkpoint_id)

    assert await story.steps() == [10]
    assert await story.download(
        pb.DownloadCheckpointRequest(checkpoint_id=saved.checkpoint_id)
    ) == (FILES)
    assert len(await story.events("committed")) == 1


async def test_a_written_manifest_makes_nothing_visible_before_the_row_does(
    story: Story,
) -> None:
    await story.open()
    begun = await story.announce(10)
    await story.put(begun)
    faults.arm(story.service.faults, "checkpoint_store.commit.after_manifest", action="hang")
    commit = asyncio.create_task(story.commit(begun.checkpoint_id))

    async def manifest_is_written() -> bool:
        return "manifest.json" in await story.stored(begun.checkpoint_id)

    await until(manifest_is_written)

    assert await story.steps() == []
    faults.disarm(story.service.faults)
    assert (await commit).step == 10


async def test_a_commit_whose_caller_stopped_waiting_goes_on(story: Story) -> None:
    await story.open()
    begun = await story.announce(10)
    await story.put(begun)
    faults.arm(
        story.service.faults, "checkpoint_store.commit.before_manifest", action="delay", seconds=1
    )
    request = pb.CommitRequest(checkpoint_id=begun.checkpoint_id, epoch=1)

    with pytest.raises(Unavailable), raises_platform_errors():
        await story.runner.Commit(request, timeout=0.3)

    async def is_listed() -> bool:
        return await story.steps() == [10]

    await until(is_listed)
    faults.disarm(story.service.faults)


async def test_commit_twice_and_at_once_is_one_commit(story: Story) -> None:
    await story.open()
    begun = await story.announce(10)
    await story.put(begun)

    first, second = await asyncio.gather(
        story.commit(begun.checkpoint_id), story.commit(begun.checkpoint_id)
    )
    third = await story.commit(begun.checkpoint_id)

    assert first == second == third
    assert len(await story.events("committed")) == 1
    again = await story.announce(10)
    assert (again.is_committed, list(again.files)) == (True, [])


async def test_a_committed_step_cannot_get_other_bytes(story: Story) -> None:
    await story.open()
    await story.save(10)

    with pytest.raises(FailedPrecondition) as refused:
        await story.announce(10, files=FILES | {"trainer_state.json": b"{}"})

    assert refused.value.reason == "CHECKPOINT_DIFFERS"


async def test_an_upload_may_be_announced_again_with_other_files(story: Story) -> None:
    await story.open()
    await story.put(await story.announce(10))
    other = FILES | {"trainer_state.json": b"{}", "rng.json": b"[]"}

    saved = await story.save(10, files=other)

    which = pb.DownloadCheckpointRequest(checkpoint_id=saved.checkpoint_id)
    assert await story.download(which) == other


async def test_an_aborted_upload_is_removed_and_its_place_not_used_again(story: Story) -> None:
    await story.open()
    begun = await story.announce(10)
    await story.put(begun)

    await story.abort(begun.checkpoint_id)
    await story.abort(begun.checkpoint_id)

    with pytest.raises(FailedPrecondition) as refused:
        await story.commit(begun.checkpoint_id)
    assert refused.value.reason == "UPLOAD_GIVEN_UP"
    with pytest.raises(FailedPrecondition):
        await story.announce(10)
    async with story.admin.connection() as conn:
        # Its bytes stay until no signed address can be used to write any more.
        await conn.execute("UPDATE clock.shift SET amount = amount + '31 seconds'")
    await story.until_removed(begun.checkpoint_id)


async def test_what_no_checkpoint_may_hold_is_refused_with_every_reason(story: Story) -> None:
    await story.open()
    bad = {"pytorch_model.bin": b"x", "../up.json": b"x", "manifest.json": b"x", "a.json": b""}

    with pytest.raises(InvalidArgument) as refused:
        await story.announce(10, files=bad)

    fields = {one.field for one in refused.value.fields}
    assert fields == {"files[0].name", "files[1].name", "files[2].name"}
    assert await story.steps() == []


async def test_a_run_that_has_not_opened_the_job_may_not_write(story: Story) -> None:
    with pytest.raises(FailedPrecondition) as refused:
        await story.announce(10)
    assert refused.value.reason == "NOT_OPENED"

    await story.open(epoch=1)
    with pytest.raises(FailedPrecondition) as early:
        await story.announce(10, epoch=2)
    assert early.value.reason == "NOT_OPENED"


async def test_people_may_not_call_what_is_for_runners(story: Story) -> None:
    with pytest.raises(PermissionDenied), raises_platform_errors():
        await story.person.Open(pb.OpenRequest(job_id=story.job_id, epoch=1))


async def test_another_tenant_or_project_sees_and_changes_nothing(story: Story) -> None:
    await story.open()
    saved = await story.save(10, loss="1.0")
    await assert_blind(story, saved.checkpoint_id, tenant="other", project="default")
    await assert_blind(story, saved.checkpoint_id, tenant="acme", project="side")
    assert await story.get(saved.checkpoint_id) == saved


async def assert_blind(story: Story, checkpoint_id: str, *, tenant: str, project: str) -> None:
    """Try every method with foreign ids."""
    ids = {"checkpoint_id": checkpoint_id}
    async with (
        story.service.called_by("gateway", tenant=tenant, project=project) as person,
        story.service.called_by("trainer_runner", tenant=tenant, project=project) as runner,
    ):
        stranger, agent = CheckpointStoreServiceStub(person), CheckpointStoreServiceStub(runner)
        listed = await stranger.ListCheckpoints(pb.ListCheckpointsRequest(job_id=story.job_id))
        assert list(listed.checkpoints) == []
        calls: list[Any] = [
            stranger.GetCheckpoint(pb.GetCheckpointRequest(**ids)),
            stranger.DownloadCheckpoint(pb.DownloadCheckpointRequest(**ids)),
            stranger.DownloadCheckpoint(pb.DownloadCheckpointRequest(best_of_job_id=story.job_id)),
            stranger.DeleteCheckpoint(pb.DeleteCheckpointRequest(**ids, allow_best_or_final=True)),
            stranger.PinCheckpoint(pb.PinCheckpointRequest(**ids, is_pinned=True)),
            agent.Commit(pb.CommitRequest(**ids, epoch=1)),
            agent.Abort(pb.AbortRequest(**ids, epoch=1)),
        ]
        for call in calls:
            with pytest.raises(NotFound), raises_platform_errors():
                await call
        begin = pb.BeginRequest(job_id=story.job_id, epoch=1, step=99, max_checkpoints=1)
        with pytest.raises(PlatformError), raises_platform_errors():
            await agent.Begin(begin)
