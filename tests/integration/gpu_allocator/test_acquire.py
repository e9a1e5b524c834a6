"""Acquire: one lease a key, one open lease a GPU, whoever dies in between."""

import asyncio
from typing import Any

import pytest

from lehr import faults
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as pb
from lehr.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Unavailable
from tests.integration.gpu_allocator.story import CLOSED, Allocator, NodeUnderTest, says

KILLED_WHILE = ["gpu_allocator.acquire.before_commit", "gpu_allocator.acquire.after_commit"]


async def ask_until_answered(allocator: Allocator, request: pb.AcquireRequest, first: int) -> Any:
    """Ask one replica after the other, always with the same key, as a client does that gives up on
    none."""
    for attempt in range(30):
        try:
            return await allocator.acquire(request, replica=(first + attempt) % 3, within=20)
        except Unavailable:
            await asyncio.sleep(0.05)
    raise AssertionError("no replica answered")


@pytest.mark.parametrize("point", KILLED_WHILE)
async def test_32_at_once_get_4_gpus_though_a_replica_is_killed(
    allocator: Allocator, point: str
) -> None:
    for name in ("alpha", "beta"):
        await NodeUnderTest(allocator=allocator, name=name, gpu_count=2).sync()
    victim = allocator.services[1]
    faults.arm(victim.faults, point, action="kill", skip=1)

    requests = [allocator.ask() for _ in range(32)]
    answers = await asyncio.gather(
        *(ask_until_answered(allocator, one, index) for index, one in enumerate(requests))
    )
    faults.disarm(victim.faults)
    victim.control.kill()
    victim.control.start()

    leases = [answer.lease for answer in answers if answer.HasField("lease")]
    assert len(leases) == 4
    assert len({lease.epoch for lease in leases}) == 4
    held = await allocator.value("SELECT count(DISTINCT gpu_id) FROM gpu_allocator.gpu_holds")
    assert held == await allocator.value("SELECT count(*) FROM gpu_allocator.gpu_holds") == 4
    check = await allocator.held()
    assert (check.held_count, check.used_count, list(check.differences)) == (4, 4, [])
    refusals = {answer.refusal for answer in answers if not answer.HasField("lease")}
    assert refusals == {"no node has 1 free GPUs of a tier asked for: h100-80gb at most 0"}


async def test_the_constraint_is_never_needed(allocator: Allocator) -> None:
    logs = "".join(service.log.read_text() for service in allocator.services)

    assert "one_lease_per_gpu" not in logs
    assert "ExclusionViolation" not in logs


async def test_the_constraint_refuses_a_second_holder_by_itself(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    other = "INSERT INTO gpu_allocator.gpu_holds (gpu_id, lease_id, tenant, held)"
    other += " SELECT gpu_id, lease_id || '_2', tenant, held FROM gpu_allocator.gpu_holds"

    with pytest.raises(Exception, match="one_lease_per_gpu"):
        await allocator.value(other)

    assert (await allocator.lease(lease.lease_id)).version == 1


async def test_twenty_equal_requests_at_once_are_one_lease(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    request = allocator.ask()

    leases = await asyncio.gather(
        *(allocator.granted(request, replica=number % 3, within=20) for number in range(20))
    )

    assert len({lease.SerializeToString(deterministic=True) for lease in leases}) == 1
    assert await allocator.events_of(leases[0].lease_id) == [("lehr.lease.granted.v1", 1)]


async def test_a_lost_answer_is_asked_for_again_and_is_the_same_lease(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    request, point = allocator.ask(), "gpu_allocator.acquire.after_commit"
    faults.arm(allocator.services[0].faults, point, action="error", times=1)

    lease = await ask_until_answered(allocator, request, 0)

    assert lease == await allocator.acquire(request)
    assert (await allocator.held()).held_count == 1


async def test_the_same_key_gives_the_same_lease_even_when_it_is_over(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    request = allocator.ask()
    lease = await allocator.granted(request)
    await node.run(lease)
    await node.sync(says(lease, CLOSED))

    again = await allocator.granted(request)

    assert (again.lease_id, again.phase, again.close_reason) == (
        lease.lease_id,
        CLOSED,
        "COMPLETED",
    )


async def test_epochs_grow_per_job_and_per_gpu(allocator: Allocator, node: NodeUnderTest) -> None:
    request = allocator.ask()
    first = await allocator.granted(request)
    await allocator.stop(first.lease_id)

    second = await allocator.granted(allocator.ask(request.job_id, attempt=2))

    assert second.epoch > first.epoch
    assert await allocator.value("SELECT epoch FROM gpu_allocator.gpus") == second.epoch


async def test_an_attempt_after_a_later_one_is_refused(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    request = allocator.ask(attempt=2)
    lease = await allocator.granted(request)
    await allocator.stop(lease.lease_id)

    with pytest.raises(FailedPrecondition, match="has had attempt 2") as refused:
        await allocator.acquire(allocator.ask(request.job_id, attempt=1))

    assert refused.value.reason == "ATTEMPT_SUPERSEDED"


async def test_a_job_has_one_live_lease_at_a_time(allocator: Allocator) -> None:
    await NodeUnderTest(allocator=allocator, name="alpha", gpu_count=4).sync()
    request = allocator.ask()
    await allocator.granted(request)

    answer = await allocator.acquire(allocator.ask(request.job_id, attempt=2))

    assert not answer.HasField("lease")
    assert answer.refusal == f"attempt 1 of job {request.job_id} is still GRANTED"


async def test_a_gang_gets_gpus_of_one_node_on_the_first_tier_that_has_them(
    allocator: Allocator,
) -> None:
    await NodeUnderTest(allocator=allocator, name="alpha", gpu_count=1).sync()
    beta = NodeUnderTest(allocator=allocator, name="beta", gpu_count=4, tier="l4-24gb")
    await beta.sync()

    lease = await allocator.granted(allocator.ask(gpu_count=3, tiers=["h100-80gb", "l4-24gb"]))

    assert (lease.tier, lease.gpu_count) == ("l4-24gb", 3)
    (told,) = (await beta.sync()).leases
    assert (told.lease.lease_id, list(told.ordinals)) == (lease.lease_id, [0, 1, 2])
    assert told.funded_duration.seconds == 3600


@pytest.mark.parametrize(
    ("fields", "error", "told"),
    [
        ({"attempt": 0}, InvalidArgument, "attempt must be 1 or more"),
        ({"gpu_count": 0}, InvalidArgument, "gpu_count must be 1 or more"),
        ({"tiers": []}, InvalidArgument, "tiers must name at least one tier"),
        ({"tiers": ["h900"]}, InvalidArgument, "there is no tier h900; there are a100-40gb"),
        ({"job_id": "", "run_id": ""}, InvalidArgument, "job_id must be set; run_id must be set"),
        ({"tenant": "umbrella"}, PermissionDenied, "asks for GPUs of another"),
    ],
)
async def test_a_wrong_request_is_told_what_is_wrong(
    allocator: Allocator, fields: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        await allocator.acquire(allocator.ask(**fields))


async def test_a_foreign_lease_is_answered_like_one_that_does_not_exist(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()

    with pytest.raises(NotFound) as foreign:
        await allocator.lease(lease.lease_id, tenant="umbrella")
    with pytest.raises(NotFound) as stopped:
        await allocator.stop(lease.lease_id, tenant="umbrella")
    with pytest.raises(NotFound) as unknown:
        await allocator.lease("lease_unknown")

    told = f"there is no lease {lease.lease_id}"
    assert str(foreign.value) == str(stopped.value) == told
    assert str(unknown.value) == "there is no lease lease_unknown"
    assert not (await allocator.lease(lease.lease_id)).HasField("stop_time")


async def test_only_the_tenants_own_leases_are_named(
    allocator: Allocator, node: NodeUnderTest
) -> None:
    lease = await allocator.granted()
    foreign = await allocator.call("gateway", "ListNodes", pb.ListNodesRequest(), tenant="umbrella")
    own = await allocator.call("gateway", "ListNodes", pb.ListNodesRequest())
    check = await allocator.held(tenant="umbrella")

    assert own.nodes[0].gpus[0].lease_id == lease.lease_id
    assert foreign.nodes[0].gpus[0].lease_id == ""
    assert (check.held_count, list(check.leases)) == (1, [])
    assert not (await allocator.intervals(tenant="umbrella")).leases


@pytest.mark.parametrize(
    ("role", "is_named"), [("member", False), ("admin", True), ("operator", True)]
)
async def test_a_lease_of_another_project_is_named_for_admins_alone(
    allocator: Allocator, node: NodeUnderTest, role: str, is_named: bool
) -> None:
    lease = await allocator.granted(allocator.ask(project="elsewhere"))

    nodes = await allocator.call("gateway", "ListNodes", pb.ListNodesRequest(), role=role)
    check = await allocator.held(role=role)

    named = [lease.lease_id] if is_named else []
    assert [nodes.nodes[0].gpus[0].lease_id] == (named or [""])
    assert [one.lease_id for one in check.leases] == named
    assert check.held_count == 1


@pytest.mark.parametrize(
    ("caller", "method", "request_"),
    [
        ("gateway", "Acquire", pb.AcquireRequest()),
        ("gateway", "RequestStop", pb.RequestStopRequest()),
        ("gateway", "SyncNode", pb.SyncNodeRequest()),
        ("gateway", "GetLease", pb.GetLeaseRequest()),
        ("gateway", "ListLeaseIntervals", pb.ListLeaseIntervalsRequest()),
        ("scheduler", "SyncNode", pb.SyncNodeRequest()),
        ("trainer_runner", "Acquire", pb.AcquireRequest()),
        ("billing", "RequestStop", pb.RequestStopRequest()),
        ("telemetry", "ListNodes", pb.ListNodesRequest()),
    ],
)
async def test_nobody_else_may_call(
    allocator: Allocator, caller: str, method: str, request_: Any
) -> None:
    with pytest.raises(PermissionDenied, match=f"{caller} may not call {method}"):
        await allocator.call(caller, method, request_)
