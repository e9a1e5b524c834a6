"""A whole stack with a toy model and a small dataset, and what tests do with it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from lehr.api.billing.v1 import billing_pb2
from lehr.api.scheduler.v1 import job_pb2
from lehr.client import AsyncClient
from lehr.client.jobs import RESTING
from lehr.errors import PlatformError
from lehr.money import Money
from tests.support.stack import StackUnderTest

MODEL, DATASET = "toy", "chats"
PATIENCE_SECONDS = 120.0
MAX_COST = Money(currency="EUR", micros=5_000_000)


@dataclass(frozen=True, kw_only=True)
class World:
    """One tenant's view of a stack."""

    stack: StackUnderTest
    client: AsyncClient

    def spec(self, script: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """Return a job: scripted unless told otherwise, evaluated and saved every 10 steps."""
        training = {"eval_steps": 10, "save_steps": 10, **more.pop("training", {})}
        spec: dict[str, Any] = {
            "name": "a job",
            "model": MODEL,
            "dataset": DATASET,
            "training": training,
            "data": {"validation_split": 0.2, "max_length": 64},
            **more,
        }
        return spec if script is None else {**spec, "script": dict(script)}

    async def launch(self, script: Mapping[str, Any] | None = None, **more: Any) -> str:
        """Launch a job and return its id."""
        spec = self.spec({"total_steps": 20} if script is None else script, **more)
        job = await self.client.jobs.create(
            spec, max_cost=MAX_COST, max_duration=timedelta(hours=1)
        )
        return job.job_id

    async def launch_planned(self, plan_digest: str) -> str:
        """Launch a plan and return the job's id."""
        job = await self.client.jobs.create(
            plan_digest, max_cost=MAX_COST, max_duration=timedelta(hours=1)
        )
        return job.job_id

    async def launch_real(self, spec: Mapping[str, Any]) -> str:
        """Launch a job that really trains and return its id."""
        job = await self.client.jobs.create(
            {"name": "a real job", **spec}, max_cost=MAX_COST, max_duration=timedelta(hours=1)
        )
        return job.job_id

    async def rests(self, job_id: str, *, within: float = PATIENCE_SECONDS) -> job_pb2.Job:
        """Wait until a job rests or has ended; outages of the platform are waited out."""
        return await self.until(job_id, lambda job: job.state in RESTING, within=within)

    async def until(
        self,
        job_id: str,
        is_so: Callable[[job_pb2.Job], bool],
        *,
        within: float = PATIENCE_SECONDS,
    ) -> job_pb2.Job:
        """Wait until something is so of a job."""

        async def look() -> job_pb2.Job | None:
            job = await self.client.jobs.get(job_id)
            return job if is_so(job) else None

        return await eventually(look, within=within)

    async def reaches(self, job_id: str, step: int) -> job_pb2.Job:
        """Wait until a job has taken a step, or has ended."""
        return await self.until(
            job_id, lambda job: job.progress.step >= step or job.state in RESTING
        )

    async def steps(self, job_id: str, name: str = "loss") -> dict[int, str]:
        """Return the values of a series by step; a step that is there twice is an error."""
        points = await self.client.jobs.metrics(job_id, names=[name])
        found = {point.step: point.value for point in points}
        assert len(found) == len(points), f"a step of {name} is stored twice"
        return found

    async def has_steps(self, job_id: str, count: int, name: str = "loss") -> dict[int, str]:
        """Wait until the series holds exactly the steps 1 to ``count``."""

        async def look() -> dict[int, str] | None:
            found = await self.steps(job_id, name)
            return found if sorted(found) == list(range(1, count + 1)) else None

        return await eventually(look)

    async def saved(self, job_id: str) -> dict[int, str]:
        """Return the roles of a job's checkpoints by step."""
        return {
            one.step: " ".join(
                word for word, is_so in (("best", one.is_best), ("final", one.is_final)) if is_so
            )
            for one in await self.client.checkpoints.list(job_id)
        }

    async def settled(self, job_id: str) -> billing_pb2.Cost:
        """Wait until a job's cost is final."""

        async def look() -> billing_pb2.Cost | None:
            cost = await self.client.jobs.cost(job_id)
            return None if cost.is_provisional else cost

        return await eventually(look)

    async def proves_clean(self) -> None:
        """Wait until the ledger equals the leases and what is used equals what is held."""

        async def look() -> bool | None:
            proof = await self.client.billing.reconcile()
            held = await self.client.gpus.check_held()
            told = [*proof.differences, *held.differences]
            if told:
                raise AssertionError("; ".join(told))
            return True

        await eventually(look)

    async def log(self, job_id: str) -> str:
        """Return the job's log as one text."""
        return "\n".join([line.text async for line in self.client.jobs.logs(job_id)])

    @asynccontextmanager
    async def of_tenant(
        self, tenant: str, *, project: str = "", role: str = "admin"
    ) -> AsyncIterator[World]:
        """Give the same stack as another tenant sees it, or another project of one."""
        made = await self.client.keys.create("test", tenant=tenant, project=project, role=role)
        gateway = self.stack.status().gateway
        async with AsyncClient(gateway, made.secret) as client:
            yield World(stack=self.stack, client=client)


async def eventually(
    look: Callable[[], Awaitable[Any]], *, within: float = PATIENCE_SECONDS
) -> Any:
    """Return what ``look`` gives once it gives something; what it raises is kept for the end."""
    deadline = time.monotonic() + within
    problem: Exception | None = None
    while time.monotonic() < deadline:
        try:
            found = await look()
            problem = None
            if found is not None:
                return found
        except (PlatformError, AssertionError) as error:
            problem = error
        await asyncio.sleep(0.2)
    raise AssertionError(f"not so within {within} s") from problem


def write_chats(path: Path, count: int = 40) -> Path:
    """Write small chats, each different."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"row-{number:02}"},
                {"role": "assistant", "content": f"answer {number}"},
            ]
        }
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
