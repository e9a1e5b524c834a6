"""What is billed of a run whose node goes dark: up to the last proof, to the second, and for good.

The node's agent is this test, and the database's clock is set by it.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as pb
from lehr.api.gpu_allocator.v1.gpu_allocator_pb2_grpc import GpuAllocatorServiceStub
from lehr.api.scheduler.v1 import job_pb2
from lehr.money import Money
from lehr.rpc.auth import Identity, acting_for
from lehr.rpc.client import channel, raises_platform_errors
from tests.e2e.audit import billable_microseconds, leases_of, rows
from tests.e2e.broker import connected, digested, listening, tell_again
from tests.e2e.world import World, eventually
from tests.support.stack import StackFactory, StackUnderTest

TIER = "l4-24gb"
RUNNING, CLOSED = pb.LEASE_PHASE_RUNNING, pb.LEASE_PHASE_CLOSED
LATE_SECONDS = 2.0
"""What a call on a busy machine may take; the clock goes on meanwhile."""

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def stack(stack_factory: StackFactory) -> StackUnderTest:
    """A stack without any node of its own, in which silence counts after seconds."""
    return stack_factory(
        nodes=(),
        environment={"gpu_allocator": {"GPU_ALLOCATOR_LEASE_TTL": "6"}},
    )


@dataclass
class Ghost:
    """A node with one GPU whose agent is the test."""

    world: World
    name: str = field(default_factory=lambda: f"ghost-{next(_numbers)}")
    incarnation: int = 1
    sequence: int = 0
    lease: pb.Lease | None = None
    epoch: int = 0

    async def sync(self, *reports: pb.LeaseReport) -> pb.SyncNodeResponse:
        """Say what there is and hear what should be."""
        self.sequence += 1
        gpu = pb.GpuReport(
            ordinal=0,
            tier=TIER,
            memory_bytes=24 * 10**9,
            device_id=f"GPU-{self.name}",
            is_clear=not reports or reports[0].phase == CLOSED,
            epoch=self.epoch,
        )
        request = pb.SyncNodeRequest(
            node_name=self.name,
            incarnation=self.incarnation,
            boot_id=f"boot-{self.incarnation}",
            sync_sequence=self.sequence,
            gpus=[gpu],
            leases=reports,
        )
        identity = Identity("trainer_runner", self.world.stack.identity_key("trainer_runner"))
        async with channel(self.world.stack.address("gpu_allocator"), identity) as opened:
            with acting_for(""), raises_platform_errors():
                return await GpuAllocatorServiceStub(opened).SyncNode(request)

    async def says(self, phase: int, **seconds: float) -> None:
        """Report the lease; ages in seconds by the names of their fields."""
        assert self.lease is not None
        report = pb.LeaseReport(lease_id=self.lease.lease_id, epoch=self.lease.epoch, phase=phase)
        for name, age in seconds.items():
            getattr(report, name).FromTimedelta(timedelta(seconds=age))
        if phase == CLOSED:
            report.close_reason = "COMPLETED"
        await self.sync(report)

    async def takes_a_lease(self) -> None:
        """Sync until there is something to run."""

        async def look() -> pb.Lease | None:
            answer = await self.sync()
            return answer.leases[0].lease if answer.leases else None

        self.lease = await eventually(look)
        self.epoch = self.lease.epoch

    def dies_and_comes_back(self) -> None:
        """Be the next start of the machine."""
        self.incarnation, self.sequence = self.incarnation + 1, 0


@dataclass(frozen=True)
class Story:
    """A run of a ghost, and the clock counted from its beginning."""

    world: World
    ghost: Ghost
    job_id: str
    began: datetime

    async def lease_now(self) -> pb.Lease:
        """Return the lease as the allocator knows it."""
        return (await leases_of(self.world, self.job_id))[0]

    async def at(self, seconds: float) -> None:
        """Set the clock so many seconds after the beginning."""
        query = """
            UPDATE clock.shift SET amount = amount + ($1::timestamptz - clock.now())
            WHERE clock.now() <= $1::timestamptz RETURNING 1
        """
        moved = await rows(self.world, query, self.began + timedelta(seconds=seconds))
        assert moved, f"the machine was so slow that {seconds} s have passed already"

    async def elapsed(self) -> float:
        """Return what the clock says, in seconds from the beginning."""
        [[now]] = await rows(self.world, "SELECT clock.now()")
        return (now - self.began).total_seconds()

    async def heartbeat(self, **committed: float) -> None:
        """Prove that the run lives; ``committed_at`` is the instant of its newest checkpoint."""
        ages = {"progress_age": 0.0}
        if "committed_at" in committed:
            ages["committed_age"] = await self.elapsed() - committed["committed_at"]
        await self.ghost.says(RUNNING, **ages)

    async def silent_until_lost(self) -> None:
        """Let time pass, in steps that the allocator does not take for its own absence."""
        for _ in range(30):
            if (await self.lease_now()).phase == pb.LEASE_PHASE_LOST:
                return
            await self.at(await self.elapsed() + 2)
            await asyncio.sleep(1.1)
        raise AssertionError("the silence was never noticed")


async def begin(world: World, *, hours: int = 1) -> Story:
    """Launch a job, and let a ghost compute it from the instant 0 on."""
    ghost = Ghost(world)
    await ghost.sync()
    spec = world.spec({"total_steps": 10}, name=ghost.name, tier=TIER)
    limit = Money(currency="EUR", micros=100_000_000)
    job = await world.client.jobs.create(spec, max_cost=limit, max_duration=timedelta(hours=hours))
    await ghost.takes_a_lease()
    await ghost.says(RUNNING, running_age=0.0)
    [lease] = await leases_of(world, job.job_id)
    [[began]] = await rows(
        world, "SELECT running_time FROM gpu_allocator.leases WHERE lease_id = $1", lease.lease_id
    )
    return Story(world=world, ghost=ghost, job_id=job.job_id, began=began)


async def billed(story: Story) -> tuple[int, int]:
    """Return the seconds and the micros on the bill."""
    cost = await story.world.client.jobs.cost(story.job_id)
    return cost.billed_seconds, cost.total.micros


async def price_of(world: World, seconds: int) -> int:
    """Return what so many seconds of one GPU cost, rounded down once, in micros."""
    [rate] = (await world.client.billing.quote([TIER])).rates
    return seconds * rate.price_per_gpu_hour.micros // 3600


@pytest.mark.parametrize(
    ("committed_at", "expected"),
    [
        pytest.param(25.0, 25, id="saved at 25 s"),
        pytest.param(None, 0, id="nothing saved"),
        pytest.param(30.0, 30, id="saved at the last heartbeat", marks=pytest.mark.slow),
    ],
)
async def test_a_power_cut_is_billed_up_to_what_need_not_be_done_again(
    world: World, committed_at: float | None, expected: int
) -> None:
    async with listening(world, "evt.lease.>") as told:
        story = await begin(world)
        await story.at(10)
        await story.heartbeat()
        await story.at(20)
        await story.heartbeat()
        await story.at(30)
        saved = {} if committed_at is None else {"committed_at": committed_at}
        await story.heartbeat(**saved)
        await story.at(36)
        dark = await world.client.jobs.cost(story.job_id)

        await story.at(120)
        unnoticed = await billed(story)
        await story.silent_until_lost()
        lost = await story.lease_now()
        noticed = await until_billed_as(story, lost)
        await world.client.jobs.stop(story.job_id)

        await story.at(600)
        story.ghost.dies_and_comes_back()
        await story.ghost.says(
            CLOSED, running_age=600.0, end_age=564.0, committed_age=564.5, progress_age=564.0
        )
        settled = await world.settled(story.job_id)
        async with connected(world) as client:
            await tell_again(client, *reversed(told.of(lost.lease_id)))
    await digested(world, ("LEASES", "billing-lease"), ("LEASES", "scheduler-lease"))
    await story.at(50_000)

    # While nobody knows, the bill stands at the last heartbeat and is not final.
    assert dark.is_provisional
    assert 30 <= dark.billed_seconds < 30 + LATE_SECONDS
    assert unnoticed == (dark.billed_seconds, dark.total.micros)
    assert expected <= noticed[0] < expected + LATE_SECONDS
    assert (noticed[0] == 0) == (expected == 0)
    assert noticed == (noticed[0], await price_of(world, noticed[0]))
    assert (settled.billed_seconds, settled.total.micros) == noticed
    assert await billed(story) == noticed
    assert (await world.client.jobs.get(story.job_id)).state == job_pb2.JOB_STATE_STOPPED
    await world.proves_clean()


async def until_billed_as(story: Story, lease: pb.Lease) -> tuple[int, int]:
    """Wait until billing has heard of a lost lease, and return what it bills."""
    assert lease.phase == pb.LEASE_PHASE_LOST
    expected = billable_microseconds(lease) // 1_000_000

    async def look() -> tuple[int, int] | None:
        found = await billed(story)
        return found if found[0] == expected else None

    found: tuple[int, int] = await eventually(look)
    return found


async def test_thirty_hours_with_heartbeats_are_billed_in_full(world: World) -> None:
    story = await begin(world, hours=40)
    hours, seen = 30, list[int]()
    for hour in range(1, hours):
        await story.at(hour * 3600)
        await story.heartbeat(committed_at=hour * 3600.0 - 60)
        if hour % 10 == 0:
            seen.append((await billed(story))[0])
    await story.at(hours * 3600)
    since = await story.elapsed()
    await story.ghost.says(CLOSED, running_age=since, end_age=since - hours * 3600)

    settled = await world.settled(story.job_id)

    assert [round(seconds / 3600) for seconds in seen] == [10, 20]
    assert hours * 3600 <= settled.billed_seconds < hours * 3600 + LATE_SECONDS
    assert settled.total.micros == await price_of(world, settled.billed_seconds)
    await world.proves_clean()
