"""An operator's word ends a quarantine; the node's word makes the GPU free."""

import asyncio
from typing import Any

import pytest

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as pb
from lehr.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PlatformError,
)
from tests.integration.gpu_allocator.story import (
    CLEARING,
    CLOSED,
    FREE,
    HELD,
    QUARANTINED,
    Allocator,
    NodeUnderTest,
    says,
)

ALPHA = ("alpha", 0)
WHY = "power-cycled the board, nvidia-smi is empty"


async def quarantined(allocator: Allocator, node: NodeUnderTest) -> str:
    """Let a process outlive its end, and return the id of the GPU that it was on."""
    lease = await allocator.granted()
    await node.run(lease)
    node.is_stuck = True
    await node.sync(says(lease, CLOSED, close_reason="USER_STOPPED"))
    assert await state(allocator) == QUARANTINED
    return await gpu_id(allocator)


async def gpu_id(allocator: Allocator) -> str:
    """Return the id of the only GPU."""
    found = await allocator.value("SELECT gpu_id FROM gpu_allocator.gpus")
    return str(found)


async def state(allocator: Allocator) -> int:
    """Return where the only GPU is."""
    return (await allocator.gpu_states())[ALPHA]


async def release(allocator: Allocator, gpu: str, **how: Any) -> pb.Gpu:
    """Release a GPU as an operator does."""
    key, reason = how.pop("key", "ticket-7"), how.pop("reason", WHY)
    request = pb.ReleaseGpuRequest(gpu_id=gpu, reason=reason, request_id=key)
    answer = await allocator.call(
        "gateway", "ReleaseGpu", request, role=how.pop("role", "operator"), **how
    )
    released: pb.Gpu = answer.gpu
    return released


async def kept(allocator: Allocator) -> list[tuple[Any, ...]]:
    """Return who released what and why, and whether the time is that of a minute ago or newer."""
    rows = await allocator.admin.fetch(
        "SELECT gpu_id, principal, reason,"
        "       clock.now() - release_time BETWEEN '0' AND interval '1 minute'"
        "  FROM gpu_allocator.gpu_releases"
    )
    return [tuple(row) for row in rows]


async def test_a_released_gpu_is_granted_once_its_node_says_that_it_is_clear(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    gpu = await quarantined(allocator, node)
    node.is_stuck, node.is_clear = False, True
    await node.sync()
    before = await state(allocator)

    released = await release(allocator, gpu)
    too_early = await allocator.acquire()
    await node.sync()

    assert (before, released.gpu_id, released.state) == (QUARANTINED, gpu, CLEARING)
    assert not too_early.HasField("lease")
    assert await state(allocator) == FREE
    assert (await allocator.granted()).gpu_count == 1
    assert await kept(allocator) == [(gpu, "somebody", WHY, True)]


async def test_a_gpu_whose_process_is_still_stuck_is_back_in_quarantine_before_anybody_gets_it(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    gpu = await quarantined(allocator, node)

    await release(allocator, gpu)
    answers = [await allocator.acquire()]
    await node.sync()
    answers.append(await allocator.acquire())

    assert await state(allocator) == QUARANTINED
    assert not [one for one in answers if one.HasField("lease")]


async def test_a_released_gpu_that_is_not_clear_yet_waits(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    gpu = await quarantined(allocator, node)
    await release(allocator, gpu)
    node.is_stuck = False

    await node.sync()
    waits = await state(allocator)
    node.is_clear = True
    await node.sync()

    assert (waits, await state(allocator)) == (CLEARING, FREE)


async def test_only_a_gpu_in_quarantine_is_released(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    gpu = await gpu_id(allocator)
    lease = await allocator.granted()
    refused = [await _refused(allocator, gpu)]
    await node.run(lease)
    await node.sync(says(lease, CLOSED))
    refused.append(await _refused(allocator, gpu))
    node.is_clear = True
    await node.sync()
    refused.append(await _refused(allocator, gpu))

    assert [one.facts["have"] for one in refused] == ["HELD", "CLEARING", "FREE"]
    assert {one.reason for one in refused} == {"GPU_NOT_QUARANTINED"}
    assert (await state(allocator), await kept(allocator)) == (FREE, [])


@pytest.mark.parametrize("role", ["", "member", "admin", "service"])
async def test_only_operators_release(allocator: Allocator, node: NodeUnderTest, role: str) -> None:
    gpu = await quarantined(allocator, node)

    with pytest.raises(PermissionDenied) as refused:
        await release(allocator, gpu, role=role)

    assert refused.value.reason == "OPERATOR_ONLY"
    assert (await state(allocator), await kept(allocator)) == (QUARANTINED, [])


async def test_no_other_service_releases(allocator: Allocator) -> None:
    request = pb.ReleaseGpuRequest(gpu_id="gpu_" + "0" * 26, reason=WHY, request_id="1")

    with pytest.raises(PermissionDenied) as refused:
        await allocator.call("scheduler", "ReleaseGpu", request, role="operator")

    assert refused.value.reason == "CALLER_FORBIDDEN"


async def test_a_release_asked_for_again_is_answered_and_done_once(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    gpu = await quarantined(allocator, node)
    await release(allocator, gpu)
    node.is_stuck, node.is_clear = False, True
    await node.sync()
    lease = await allocator.granted()

    again = await release(allocator, gpu)
    with pytest.raises(AlreadyExists) as other:
        await release(allocator, gpu, reason="something else")

    assert again.state == HELD
    assert other.value.reason == "IDEMPOTENCY_KEY_REUSED"
    assert (await allocator.lease(lease.lease_id)).phase == lease.phase
    assert len(await kept(allocator)) == 1


async def test_of_ten_operators_at_once_one_releases(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    gpu = await quarantined(allocator, node)

    asked = (release(allocator, gpu, key=str(one), replica=one % 3) for one in range(10))
    answers = await asyncio.gather(*asked, return_exceptions=True)

    refused = [one.reason for one in answers if isinstance(one, PlatformError)]
    assert refused == ["GPU_NOT_QUARANTINED"] * 9
    assert len(await kept(allocator)) == 1


async def test_a_release_names_a_gpu_and_a_reason(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    gpu = await quarantined(allocator, node)
    wrong: list[dict[str, str]] = [
        {"reason": ""},
        {"reason": "  "},
        {"reason": "x" * 501},
        {"reason": "one\ntwo"},
        {"key": ""},
    ]
    for one in wrong:
        with pytest.raises(InvalidArgument):
            await release(allocator, gpu, **one)
    with pytest.raises(InvalidArgument):
        await release(allocator, "alpha")
    with pytest.raises(NotFound) as unknown:
        await release(allocator, "gpu_" + "0" * 26)

    assert unknown.value.reason == "GPU_NOT_FOUND"
    assert await state(allocator) == QUARANTINED


@pytest.mark.parametrize("right", ["UPDATE", "DELETE"])
async def test_the_allocator_itself_cannot_rewrite_who_released(
    allocator: Allocator, right: str
) -> None:
    table = "gpu_allocator.gpu_releases"

    has = "SELECT has_table_privilege('gpu_allocator', $1, $2)"

    assert await allocator.value(has, table, "INSERT")
    assert not await allocator.value(has, table, right)


async def _refused(allocator: Allocator, gpu: str) -> FailedPrecondition:
    with pytest.raises(FailedPrecondition) as refused:
        await release(allocator, gpu)
    return refused.value
