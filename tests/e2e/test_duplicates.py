"""What is told, asked or published again, even where the broker has forgotten it: one effect."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from lehr import faults
from lehr.api.scheduler.v1 import job_pb2
from lehr.errors import PlatformError
from lehr.stack import Node
from tests.e2e.audit import (
    TENANT,
    ends_well,
    holds_nothing,
    is_billed_by_its_leases,
    leases_of,
    rows,
)
from tests.e2e.broker import (
    connected,
    digested,
    forget,
    impatient,
    listening,
    stored,
    tell_again,
)
from tests.e2e.inventory import watched
from tests.e2e.world import World, eventually
from tests.support.stack import StackFactory, StackUnderTest

AGAIN = ("LEASES", "scheduler-lease"), ("LEASES", "billing-lease"), ("JOBS", "billing-job")
DURABLES = *AGAIN, ("JOBS", "checkpoint-job"), ("JOBS", "allocator-job")
ACK_WAIT_SECONDS = 2.0
LONG = {"total_steps": 600, "step_seconds": 0.1}


@pytest.fixture(scope="module")
def stack(stack_factory: StackFactory) -> StackUnderTest:
    """Two nodes that could both start a job."""
    return stack_factory(nodes=(Node(name="a"), Node(name="b")))


@pytest.fixture
def plan(stack: StackUnderTest) -> Iterator[Path]:
    """The file that arms fault points; disarmed afterwards."""
    file = stack.stack.layout.faults
    faults.disarm(file)
    yield file
    faults.disarm(file)


async def untouched(world: World, job_id: str, told: Sequence[Msg]) -> None:
    """Tell events of a job that rests again, first to last and last to first: nothing changes."""
    job = await world.client.jobs.get(job_id)
    cost = await world.settled(job_id)
    leases = await leases_of(world, job_id)
    entries = await booked(world, job_id)

    async with connected(world) as client:
        await tell_again(client, *told, *reversed(told))
    await digested(world, *DURABLES)

    after = await world.client.jobs.get(job_id)
    assert (after.version, len(after.runs)) == (job.version, len(job.runs))
    again = await world.client.jobs.cost(job_id)
    assert (again.total, list(again.lines)) == (cost.total, list(cost.lines))
    assert await leases_of(world, job_id) == leases
    assert await booked(world, job_id) == entries
    await holds_nothing(world)
    await world.proves_clean()


async def booked(world: World, job_id: str) -> list[str]:
    """Return the ids of what the ledger has of a job."""
    page = await world.client.billing.ledger(job_id=job_id, page_size=500)
    return [one.transaction_id for one in page.transactions]


async def test_old_events_that_come_again_count_once(world: World) -> None:
    async with listening(world, "evt.job.>", "evt.lease.>") as told:
        job_id = await world.launch({"total_steps": 30, "step_seconds": 0.1}, name="told again")
        await ends_well(world, job_id, steps=30, runs=1)
        [lease] = await leases_of(world, job_id)
    said = told.of(job_id, lease.lease_id)
    assert len(said) >= 6

    await untouched(world, job_id, said)


async def test_events_that_the_broker_has_forgotten_begin_nothing_again(
    world: World, plan: Path
) -> None:
    point, name = "relay.before_mark", "before the restart"
    async with listening(world, "evt.job.>", "evt.lease.>") as told:
        job_id = await world.launch({"total_steps": 30, "step_seconds": 0.1}, name=name)
        await world.until(job_id, lambda job: job.state == job_pb2.JOB_STATE_RUNNING)
        # From here on the relays do not get to know what they have published.
        faults.arm(plan, point, action="error", times=None)
        await ends_well(world, job_id, steps=30, runs=1)
        [lease] = await leases_of(world, job_id)
        said = told.of(job_id, lease.lease_id)
    assert faults.fired(plan, point)
    assert any(one.subject.startswith("evt.job.queued.") for one in said)

    await forget(world, "JOBS", "LEASES")
    world.stack.kill("nats")
    await world.stack.wait_ready(within=90)
    faults.disarm(plan)
    finished = f"evt.job.finished.v1.{TENANT}.{job_id}"
    closed = f"evt.lease.closed.v1.{TENANT}.{lease.lease_id}"
    await eventually(lambda: holds(world, JOBS=finished, LEASES=closed))

    await untouched(world, job_id, said)
    page = await world.client.jobs.page(name_contains=name)
    assert [job.job_id for job in page.jobs] == [job_id]


async def holds(world: World, **subjects: str) -> bool | None:
    """Tell whether streams have a message of a subject each."""
    kept = [await stored(world, stream, subject) for stream, subject in subjects.items()]
    return True if all(kept) else None


@pytest.mark.slow
async def test_a_job_longer_than_an_acknowledgement_may_take_is_started_once(
    world: World, plan: Path
) -> None:
    point, steps = "subscriber.before_ack", 100
    durables = [("LEASES", "scheduler-lease"), ("LEASES", "billing-lease")]
    async with (
        impatient(world, *durables[0], ack_wait=ACK_WAIT_SECONDS),
        impatient(world, *durables[1], ack_wait=ACK_WAIT_SECONDS),
        watched(world, "trainer_runner@a") as on_a,
        watched(world, "trainer_runner@b") as on_b,
    ):
        # No word about the lease is acknowledged while the job trains.
        faults.arm(plan, point, action="error", times=None)
        job_id = await world.launch({"total_steps": steps, "step_seconds": 0.1}, name="long")
        await eventually(lambda: has_computed(world, job_id, steps - 20))
        struck = faults.fired(plan, point)
        faults.disarm(plan)
        await ends_well(world, job_id, steps=steps, runs=1)

    [lease] = await leases_of(world, job_id)
    started = Counter(one for seen in (on_a, on_b) for one in frozenset().union(*seen.computing))
    assert struck > 6
    assert started == {lease.lease_id: 1}
    assert (lease.end_time.ToDatetime() - lease.running_time.ToDatetime()).total_seconds() > (
        3 * ACK_WAIT_SECONDS
    )


async def has_computed(world: World, job_id: str, step: int) -> bool | None:
    """Tell whether telemetry, which has a consumer of its own, knows a step."""
    return True if max(await world.steps(job_id), default=0) >= step else None


@pytest.mark.parametrize(
    "with_one_key",
    [
        pytest.param(True, id="one key"),
        pytest.param(False, id="a key each", marks=pytest.mark.slow),
    ],
)
async def test_twenty_resumes_at_once_make_one_run(world: World, with_one_key: bool) -> None:
    job_id = await world.launch(LONG, name="resumed by twenty")
    await world.reaches(job_id, 12)
    await world.client.jobs.stop(job_id)
    stopped = await world.rests(job_id)

    key = {"request_id": "resume by twenty"} if with_one_key else {}
    answers = await asyncio.gather(
        *(world.client.jobs.resume(job_id, **key) for _ in range(20)), return_exceptions=True
    )
    await world.reaches(job_id, stopped.progress.step + 5)
    job = await world.client.jobs.get(job_id)
    await world.client.jobs.stop(job_id)
    await world.rests(job_id)

    resumed = [one for one in answers if isinstance(one, job_pb2.Job)]
    refused = [one for one in answers if not isinstance(one, job_pb2.Job)]
    assert resumed
    assert {one.job_id for one in resumed} == {job_id}
    assert all(isinstance(one, PlatformError) for one in refused), refused
    assert not (with_one_key and refused), refused
    assert len(job.runs) == 2
    assert len(await leases_of(world, job_id)) == 2
    query = "SELECT count(*) FROM scheduler.outbox WHERE subject_id = $1 AND type = $2"
    [[queued]] = await rows(world, query, job_id, "lehr.job.queued.v1")
    assert queued == 2
    await is_billed_by_its_leases(world, job_id)
    await holds_nothing(world)
    await world.proves_clean()
