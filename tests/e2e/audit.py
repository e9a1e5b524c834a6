"""What must hold of a job whatever has broken on its way, computed apart from the services."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import nats
import psutil

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as gpu_pb
from lehr.api.gpu_allocator.v1.gpu_allocator_pb2_grpc import GpuAllocatorServiceStub
from lehr.api.scheduler.v1 import job_pb2
from lehr.rpc.auth import Identity, acting_for
from lehr.rpc.client import channel, raises_platform_errors
from lehr.training.ends import PLATFORM_ENDS
from tests.e2e.world import World, eventually

TENANT = "default"
SEED = os.environ.get("LEHR_TEST_SEED", "1")

#: Of a test that breaks something; enough for a part's restart and a lease's expiry.
PATIENCE_SECONDS = 150.0


def moment(name: str, low: int, high: int) -> int:
    """Return a step between both at which something breaks; another seed gives another one."""
    return random.Random(f"{SEED} {name}").randint(low, high)  # noqa: S311 - repeatable


async def ends_well(
    world: World, job_id: str, *, steps: int, runs: int | None = None, stops: int = 0
) -> None:
    """Wait for a success, and prove everything about it; before it, it was stopped so often."""
    job = await world.rests(job_id, within=PATIENCE_SECONDS)
    assert (job.state, job.end_reason) == (job_pb2.JOB_STATE_SUCCEEDED, "COMPLETED"), job
    assert runs in (None, len(job.runs))
    await is_complete(world, job_id, steps=steps)
    await is_finished_once(world, job_id, stops=stops)
    await is_billed_by_its_leases(world, job_id)
    await has_whole_checkpoints(world, job_id, final=steps)
    await holds_nothing(world)
    await world.proves_clean()


async def is_complete(world: World, job_id: str, *, steps: int) -> None:
    """Wait until both series are there, each step once and with its own value."""
    losses = await world.has_steps(job_id, steps)
    assert {step: float(value) for step, value in losses.items()} == {
        step: 1.0 / step for step in range(1, steps + 1)
    }

    async def evaluated() -> bool | None:
        found = await world.steps(job_id, "eval_loss")
        return True if sorted(found) == list(range(0, steps + 1, 10)) else None

    await eventually(evaluated)


async def is_finished_once(world: World, job_id: str, *, stops: int = 0) -> None:
    """Prove that one end was decided on, beside the stops before it, and one event tells each."""
    query = "SELECT count(*) FROM scheduler.outbox WHERE subject_id = $1 AND type = $2"
    [[decided]] = await rows(world, query, job_id, "lehr.job.finished.v1")
    assert decided == 1 + stops

    async def told() -> bool | None:
        subject = f"evt.job.finished.v1.{TENANT}.{job_id}"
        return True if await _messages(world, subject) >= decided else None

    await eventually(told)
    assert await _messages(world, f"evt.job.finished.v1.{TENANT}.{job_id}") == decided


async def is_billed_by_its_leases(world: World, job_id: str) -> None:
    """Compare the settled bill with the seconds for which leases computed."""
    cost = await world.settled(job_id)
    leases = await leases_of(world, job_id)
    assert all(lease.phase == gpu_pb.LEASE_PHASE_CLOSED for lease in leases)
    lines: Counter[str] = Counter()
    for lease in leases:
        lines[lease.tier] += billable_microseconds(lease)
    # Rounded down once for each tier and price; no test changes prices while a job is there.
    billed = sum(microseconds // 1_000_000 for microseconds in lines.values())
    assert cost.billed_seconds == billed, (cost, leases)
    assert cost.total.micros == sum(line.amount.micros for line in cost.lines)


def billable_microseconds(lease: gpu_pb.Lease) -> int:
    """Return how long a lease computed for its customer."""
    if not lease.HasField("running_time"):
        return 0
    ends = [_time(lease, "end_time") or _time(lease, "alive_time")]
    ends += [_time(lease, name) for name in ("stop_time", "funded_until")]
    if lease.close_reason in PLATFORM_ENDS:
        # What was computed after the newest checkpoint is computed again.
        ends.append(_time(lease, "committed_time") or _time(lease, "running_time"))
    began = lease.running_time.ToDatetime()
    end = min(instant for instant in ends if instant is not None)
    return max(0, (end - began) // timedelta(microseconds=1))


def _time(lease: gpu_pb.Lease, name: str) -> datetime | None:
    if not lease.HasField(name):  # type: ignore[arg-type]
        return None
    found: datetime = getattr(lease, name).ToDatetime()
    return found


async def has_whole_checkpoints(world: World, job_id: str, *, final: int | None = None) -> None:
    """Download every file of every visible checkpoint; the client compares the SHA-256."""
    checkpoints = await world.client.checkpoints.list(job_id)
    assert final is None or [one.step for one in checkpoints if one.is_final] == [final]
    assert len({one.step for one in checkpoints}) == len(checkpoints)
    with tempfile.TemporaryDirectory() as folder:
        for one in checkpoints:
            place = Path(folder) / one.checkpoint_id
            await world.client.checkpoints.download(
                one.checkpoint_id, place, with_training_state=True
            )
            found = {path.name: _sha256(path) for path in place.iterdir()}
            assert found == {file.name: file.sha256 for file in one.files}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def holds_nothing(world: World) -> None:
    """Wait until every GPU can be granted again."""

    async def look() -> bool | None:
        states = await gpu_states(world)
        assert set(states) == {gpu_pb.GPU_STATE_FREE}, states
        return True

    await eventually(look)


async def gpu_states(world: World) -> Counter[int]:
    """Count the GPUs of all nodes by state."""
    nodes = await world.client.gpus.nodes()
    return Counter(gpu.state for node in nodes for gpu in node.gpus)


async def never_shared(world: World) -> None:
    """Prove by the allocator's history that no GPU was ever promised to two leases at once."""
    query = """
        SELECT count(*) FROM gpu_allocator.gpu_holds AS one JOIN gpu_allocator.gpu_holds AS other
            ON one.gpu_id = other.gpu_id AND one.lease_id < other.lease_id
            AND one.held && other.held
    """
    assert [list(row) for row in await rows(world, query)] == [[0]]


async def leases_of(world: World, job_id: str) -> Sequence[gpu_pb.Lease]:
    """Return what the allocator knows of a job, oldest first."""
    identity = Identity("billing", world.stack.identity_key("billing"))
    async with channel(world.stack.address("gpu_allocator"), identity) as to_allocator:
        stub = GpuAllocatorServiceStub(to_allocator)
        with acting_for(TENANT), raises_platform_errors():
            answer = await stub.ListLeaseIntervals(gpu_pb.ListLeaseIntervalsRequest(job_id=job_id))
    return sorted(answer.leases, key=lambda lease: lease.attempt)


async def node_of(world: World, job_id: str) -> str:
    """Return the name of the node that has a job's newest lease."""
    lease = (await leases_of(world, job_id))[-1]
    names = {node.node_id: node.name for node in await world.client.gpus.nodes()}
    return names[lease.node_id]


async def trainer_of(world: World, job_id: str) -> psutil.Process:
    """Wait until a job's trainer is known and return its process."""

    async def look() -> psutil.Process | None:
        held = await world.client.gpus.check_held()
        for lease in held.leases:
            if lease.job_id == job_id and lease.pids:
                processes = [psutil.Process(pid) for pid in lease.pids]
                return next(one for one in processes if "scripted" in " ".join(one.cmdline()))
        return None

    found: psutil.Process = await eventually(look)
    return found


async def rows(world: World, query: str, *values: Any) -> Sequence[asyncpg.Record]:
    """Ask the database as its administrator."""
    connection = await asyncpg.connect(world.stack.admin_url)
    try:
        return await connection.fetch(query, *values)
    finally:
        await connection.close()


@asynccontextmanager
async def part_down(world: World, part: str, seconds: float) -> AsyncIterator[None]:
    """Keep a part stopped for so long; the block runs meanwhile."""
    await asyncio.to_thread(world.stack.stop_part, part)
    stopped_at = asyncio.get_running_loop().time()
    try:
        yield
        left = seconds - (asyncio.get_running_loop().time() - stopped_at)
        await asyncio.sleep(max(0.0, left))
    finally:
        await asyncio.to_thread(world.stack.start_part, part)
    await world.stack.wait_ready(within=90)


async def _messages(world: World, subject: str) -> int:
    """Count what JetStream keeps under a subject."""
    given = world.stack.environment
    client = await nats.connect(
        given["LEHR_NATS_URL"], user=given["LEHR_NATS_USER"], password=given["LEHR_NATS_PASSWORD"]
    )
    try:
        info = await client.jetstream().stream_info("JOBS", subjects_filter=subject)
        return sum((info.state.subjects or {}).values())
    finally:
        await client.close()
