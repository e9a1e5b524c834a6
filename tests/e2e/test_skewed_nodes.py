"""BL-05 of the requirements: nodes whose wall clocks are wrong are billed the true time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as gpu_pb
from lehr.api.scheduler.v1 import job_pb2
from lehr.client.jobs import RESTING
from lehr.stack.part import Part
from lehr.stack.ports import LOOPBACK, Ports
from lehr.stack.probes import http_get
from tests.e2e.audit import is_billed_by_its_leases, leases_of
from tests.e2e.world import World, eventually
from tests.support.servers import RunningPart
from tests.support.stack import StackUnderTest

#: By tier, so that a job chooses its node: how wrong the wall clock is, in seconds.
OFFSETS: Mapping[str, str] = {
    "l4-24gb": "-90",
    "l40s-48gb": "90",
    "a100-80gb": "-3600",
    "h100-80gb": "-2000000000",
}
STEPS = 5


@contextmanager
def a_skewed_node(stack: StackUnderTest, tier: str, offset: str, folder: Path) -> Iterator[None]:
    """Run one more agent, with one pretended GPU and a wrong clock, until the block ends."""
    process = psutil.Process(stack.pid("trainer_runner"))
    with Ports.claim({}) as ports:
        metrics_port = ports.port("metrics")

        async def probe() -> None:
            await http_get(metrics_port, "/readyz")

        own = {
            "NODE_NAME": f"skewed-{tier}",
            "STATE_DIR": str(folder / tier),
            "PRETEND_GPUS": f"{tier}:1",
            "CPU_SLOTS": "0",
            "WALL_CLOCK_OFFSET": offset,
            "METRICS_LISTEN": f"{LOOPBACK}:{metrics_port}",
        }
        changed = {f"TRAINER_RUNNER_{name}": value for name, value in own.items()}
        part = Part(
            name=f"skewed-{tier}",
            argv=tuple(process.cmdline()),
            environment={**process.environ(), **changed},
            folder=stack.stack.layout.work,
            port=None,
            probe=probe,
        )
        control = RunningPart(part, stack.stack.layout.logs)
        try:
            control.start()
            yield
        finally:
            control.kill()


@pytest.fixture(scope="module")
def skewed(stocked: StackUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One node for each wrong clock."""
    folder = tmp_path_factory.mktemp("skewed")
    with ExitStack() as cleanup:
        for tier, offset in OFFSETS.items():
            cleanup.enter_context(a_skewed_node(stocked, tier, offset, folder))
        yield


@pytest.mark.usefixtures("skewed")
@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.slow)])
async def test_a_run_is_billed_its_true_time_whatever_its_nodes_clock_says(
    world: World, seconds: int
) -> None:
    async def connected() -> bool | None:
        names = {node.name for node in await world.client.gpus.nodes()}
        return True if names >= {f"skewed-{tier}" for tier in OFFSETS} else None

    await eventually(connected)
    script = {"total_steps": STEPS, "step_seconds": seconds / STEPS}
    jobs = {
        tier: await world.launch(script, name=f"{seconds} s on {tier}", tier=tier)
        for tier in OFFSETS
    }
    seen = await asyncio.gather(*(costs_until_rest(world, job_id) for job_id in jobs.values()))

    for (tier, job_id), live in zip(jobs.items(), seen, strict=True):
        job = await world.rests(job_id)
        assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job
        cost = await world.settled(job_id)
        [lease] = await leases_of(world, job_id)
        assert lease.tier == tier
        # A busy machine adds what its steps took longer; clocks that are wrong would add 90 s.
        assert abs(cost.billed_seconds - seconds) <= 1 + seconds // 30, tier
        assert live == sorted(live)
        assert 0 <= live[0] <= live[-1] <= cost.total.micros
        in_order(job, lease)
        await is_billed_by_its_leases(world, job_id)
    await world.proves_clean()


async def costs_until_rest(world: World, job_id: str) -> list[int]:
    """Read the live cost, in micros, until a job rests."""
    found = [0]
    while True:
        job = await world.client.jobs.get(job_id)
        found.append((await world.client.jobs.cost(job_id)).total.micros)
        if job.state in RESTING:
            return found
        await asyncio.sleep(0.3)


def in_order(job: job_pb2.Job, lease: gpu_pb.Lease) -> None:
    """Nothing in any record ends before it begins."""
    for record, names in (
        (job, ("create_time", "start_time", "finish_time", "update_time")),
        (job.runs[0], ("create_time", "finish_time")),
        (lease, ("grant_time", "running_time", "end_time", "close_time")),
    ):
        times = [instant(record, name) for name in names]
        assert times == sorted(times), (names, times)


def instant(record: Any, name: str) -> datetime:
    """Return a time of a record, which must be there."""
    assert record.HasField(name), name
    found: datetime = getattr(record, name).ToDatetime()
    return found
