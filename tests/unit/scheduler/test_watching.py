"""Watching a job: however many watch, it is looked at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from lehr.errors import Unavailable
from services.scheduler import watching
from services.scheduler.changes import Changes
from services.scheduler.domain.errors import JobNotFound
from services.scheduler.domain.job import JobState
from services.scheduler.domain.progress import Progress
from services.scheduler.handlers.views import JobView
from services.scheduler.watching import Watches
from tests.support.scheduler import a_job

MANY = 200


class World:
    """A job that changes, and how often it was looked at."""

    def __init__(self) -> None:
        job = a_job()
        self.view = JobView(job=job, message="", progress=Progress(total_steps=9), queue_position=1)
        self.failure: Exception | None = None
        self.look_count = 0
        self.changes = Changes(None)  # type: ignore[arg-type]  # nothing listens here
        self.watches = Watches(self.changes, self._look)

    async def _look(self, tenant: str, job_id: str) -> JobView:
        assert (tenant, job_id) == (self.view.job.tenant, self.view.job.job_id)
        self.look_count += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return self.view

    def moves(self, **fields: object) -> None:
        job = replace(self.view.job, version=self.view.job.version + 1, **fields)  # type: ignore[arg-type]
        self.view = replace(self.view, job=job)
        self.changes._told(None, 0, "", job.job_id)

    def watch(self, *, project: str | None = None, after: int = 0) -> AsyncIterator[JobView]:
        job = self.view.job
        return self.watches.job(job.tenant, job.job_id, project=project, after_version=after)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A job that nobody looks at without being told."""
    monkeypatch.setattr(watching, "LOOK_AGAIN_SECONDS", 3600.0)
    return World()


async def versions(views: AsyncIterator[JobView]) -> list[int]:
    return [view.job.version async for view in views]


async def first(views: AsyncIterator[JobView]) -> JobView:
    return await asyncio.wait_for(anext(aiter(views)), timeout=20)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_many_who_watch_one_job_see_all_of_it_at_the_cost_of_one(world: World) -> None:
    first = world.view.job.version
    crowd = [asyncio.create_task(versions(world.watch())) for _ in range(MANY)]
    await settle()
    world.moves(state=JobState.RUNNING)
    await settle()
    world.moves(state=JobState.SUCCEEDED)

    seen = await asyncio.wait_for(asyncio.gather(*crowd), timeout=20)

    assert seen == [[first, first + 1, first + 2]] * MANY
    assert world.look_count < 10


async def test_who_comes_later_sees_the_job_as_it_is_by_then(world: World) -> None:
    await first(world.watch())
    keeps_watching = world.watch()
    await first(keeps_watching)
    # A change that nobody was told of.
    job = replace(world.view.job, version=world.view.job.version + 1)
    world.view = replace(world.view, job=job)

    late = await first(world.watch())

    assert late.job.version == job.version


async def test_a_job_of_another_project_is_not_there(world: World) -> None:
    keeps_watching = world.watch(project=world.view.job.project)
    await first(keeps_watching)

    with pytest.raises(JobNotFound):
        await asyncio.wait_for(versions(world.watch(project="another")), timeout=20)


async def test_a_failure_reaches_everybody_and_the_next_watch_begins_anew(world: World) -> None:
    crowd = [asyncio.create_task(versions(world.watch())) for _ in range(3)]
    await settle()
    world.failure = Unavailable("away")
    world.moves()

    ends = await asyncio.wait_for(asyncio.gather(*crowd, return_exceptions=True), timeout=20)
    world.failure = None

    assert {type(end) for end in ends} == {Unavailable}
    assert (await first(world.watch())).job == world.view.job


async def test_nobody_looks_once_nobody_watches(world: World) -> None:
    job = world.view.job
    views = world.watches.job(job.tenant, job.job_id, project=None, after_version=0)
    await first(views)

    await views.aclose()  # type: ignore[attr-defined]  # it is a generator
    await settle()
    looked = world.look_count
    world.moves()
    await settle()

    assert world.look_count == looked
    assert not world.changes._watchers
