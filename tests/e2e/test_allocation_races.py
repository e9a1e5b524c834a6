"""Everything twice: two gateways, two schedulers, two allocators, and every event told again."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pytest

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as gpu_pb
from lehr.api.gpu_allocator.v1.gpu_allocator_pb2_grpc import GpuAllocatorServiceStub
from lehr.api.scheduler.v1 import job_pb2
from lehr.client import AsyncClient
from lehr.rpc.auth import Identity, acting_for
from lehr.rpc.client import channel, raises_platform_errors
from lehr.stack import Node
from tests.e2e.audit import PATIENCE_SECONDS, SEED, TENANT, holds_nothing, leases_of
from tests.e2e.broker import listening, stored
from tests.e2e.inventory import gpus_by_lease, history_is_disjoint, shared, watched
from tests.e2e.world import MAX_COST, World, eventually
from tests.support.replicas import Replica, a_replica
from tests.support.stack import StackFactory, StackUnderTest

TIER = "a100-40gb"
GPUS, JOBS = 4, 8
SHORT = {"total_steps": 2}
HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Twins:
    """The second of each."""

    gateway: Replica
    scheduler: Replica
    allocator: Replica


@pytest.fixture(scope="module")
def stack(stack_factory: StackFactory) -> StackUnderTest:
    """One node with four GPUs that do not exist."""
    return stack_factory(
        nodes=(Node(name="one", cpu_slots=0, pretend_gpus=f"{TIER}:{GPUS}"),),
        environment={
            "scheduler": {
                "SCHEDULER_BACKOFF_SECONDS": "0.5",
                "SCHEDULER_SWEEP_SECONDS": "2",
            }
        },
    )


@pytest.fixture(scope="module")
def twins(stocked: StackUnderTest) -> Iterator[Twins]:
    """A second way through the platform: each calls the second of the next."""
    with ExitStack() as cleanup:
        allocator = cleanup.enter_context(a_replica(stocked, "gpu_allocator"))
        addresses = {"gpu_allocator": allocator.address}
        scheduler = cleanup.enter_context(a_replica(stocked, "scheduler", addresses=addresses))
        addresses["scheduler"] = scheduler.address
        gateway = cleanup.enter_context(a_replica(stocked, "gateway", addresses=addresses))
        yield Twins(gateway=gateway, scheduler=scheduler, allocator=allocator)


@pytest.fixture
async def second(world: World, twins: Twins) -> AsyncIterator[World]:
    """The same tenant by the second gateway."""
    async with AsyncClient(twins.gateway.address, world.stack.api_key) as client:
        yield World(stack=world.stack, client=client)


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=pytest.mark.slow)])
async def test_a_gpu_has_one_job_whoever_grants_it_and_dies_over_it(
    world: World, second: World, twins: Twins, rounds: int
) -> None:
    source = random.Random(f"{SEED} {rounds}")  # noqa: S311 - repeatable
    jobs: list[str] = []
    async with (
        listening(world, "evt.lease.>", "evt.job.>", echo=True) as told,
        watched(world) as seen,
    ):
        for number in range(rounds):
            jobs += await one_round(world, second, twins, number=number, source=source)

    assert not seen.contradictions
    assert seen.looks > rounds
    assert seen.at_most() == GPUS
    assert not shared(seen.computing, await gpus_by_lease(world))
    await history_is_disjoint(world)
    assert told.echoes >= len(jobs) * 5
    assert await dead_letters(world) == 0
    await world.proves_clean()


async def one_round(
    world: World, second: World, twins: Twins, *, number: int, source: random.Random
) -> list[str]:
    """Launch twice as many jobs as there are GPUs, kill an allocator, and see all of them end."""
    crowd = asyncio.gather(
        *(
            way.launch(SHORT, name=f"round {number}", tier=TIER)
            for way in [world, second] * (JOBS // 2)
        )
    )
    await asyncio.sleep(source.uniform(0.0, 2.0))
    if source.random() < 0.5:
        world.stack.kill("gpu_allocator")
    else:
        twins.allocator.control.kill()
        twins.allocator.control.start()
    jobs = await crowd
    await asyncio.gather(*(asks_again(world, twins, job_id) for job_id in jobs))
    ended = [await world.rests(job_id, within=PATIENCE_SECONDS) for job_id in jobs]

    assert {job.state for job in ended} == {job_pb2.JOB_STATE_SUCCEEDED}
    assert {len(job.runs) for job in ended} == {1}
    await holds_nothing(world)
    return jobs


async def asks_again(world: World, twins: Twins, job_id: str) -> None:
    """Ask both allocators once more for what a job has, as a scheduler without memory would."""
    await world.until(job_id, lambda job: job.state != job_pb2.JOB_STATE_QUEUED)
    [lease] = await eventually(lambda: leases_of(world, job_id))
    request = gpu_pb.AcquireRequest(
        tenant=TENANT,
        project=lease.project,
        job_id=job_id,
        attempt=lease.attempt,
        run_id=lease.run_id,
        gpu_count=lease.gpu_count,
    )
    request.tiers.add(tier=TIER).funded_duration.FromTimedelta(HOUR)
    for address in (twins.allocator.address, world.stack.address("gpu_allocator")):
        again = await eventually(partial(acquire, world, address, request))
        assert (again.lease_id, again.epoch) == (lease.lease_id, lease.epoch)


async def acquire(world: World, address: str, request: gpu_pb.AcquireRequest) -> gpu_pb.Lease:
    """Ask one allocator for GPUs."""
    identity = Identity("scheduler", world.stack.identity_key("scheduler"))
    async with channel(address, identity) as opened:
        with acting_for(TENANT), raises_platform_errors():
            return (await GpuAllocatorServiceStub(opened).Acquire(request)).lease


async def dead_letters(world: World) -> int:
    """Count what consumers gave up."""
    return sum((await stored(world, "DLQ", "dlq.>")).values())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=pytest.mark.slow)])
async def test_twenty_equal_launches_by_two_gateways_make_one_job(
    world: World, second: World, rounds: int
) -> None:
    for number in range(rounds):
        name = f"twenty {rounds} {number}"
        spec = world.spec(SHORT, name=name, tier=TIER)
        made = await asyncio.gather(
            *(
                way.client.jobs.create(spec, max_cost=MAX_COST, max_duration=HOUR, request_id=name)
                for way in [world, second] * 10
            )
        )

        [job_id] = {job.job_id for job in made}
        await world.rests(job_id)
        page = await world.client.jobs.page(name_contains=name)
        assert [job.job_id for job in page.jobs] == [job_id]
        assert len(await leases_of(world, job_id)) == 1
