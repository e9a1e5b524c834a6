"""Watching jobs: one look at a job serves everybody who watches it in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context

from services.scheduler.changes import Changes
from services.scheduler.domain.errors import JobNotFound
from services.scheduler.domain.job import RESTING
from services.scheduler.handlers.views import JobView

LOOK_AGAIN_SECONDS = 1.0
"""Progress and places in the queue change without a word."""

Look = Callable[[str, str], Awaitable[JobView]]
"""Returns a job of a tenant, whatever its project, as it is now."""


class Watches:
    """The jobs that are watched now."""

    def __init__(self, changes: Changes, look: Look) -> None:
        self._changes = changes
        self._look = look
        self._feeds: dict[tuple[str, str], _Feed] = {}

    async def job(
        self, tenant: str, job_id: str, *, project: str | None, after_version: int
    ) -> AsyncIterator[JobView]:
        """Yield a job whenever it has changed, until it rests.

        Raises:
            JobNotFound: there is none, or it is not of the project.
        """
        shown: JobView | None = None
        with self._feed(tenant, job_id) as feed:
            # A look that has begun already may not show what the watcher has seen elsewhere.
            seen = feed.begun
            feed.changed.set()
            while True:
                view, seen = await feed.next(seen)
                if project not in (None, view.job.project):
                    raise JobNotFound(job_id)
                if view.job.version > after_version or shown not in (None, view):
                    yield view
                    after_version = max(after_version, view.job.version)
                shown = view
                if view.job.state in RESTING:
                    return

    @contextmanager
    def _feed(self, tenant: str, job_id: str) -> Iterator[_Feed]:
        key = (tenant, job_id)
        feed = self._feeds.get(key)
        if feed is None or feed.is_over:
            feed = _Feed(self._changes, job_id, lambda: self._look(tenant, job_id))
            self._feeds[key] = feed
        feed.watcher_count += 1
        try:
            yield feed
        finally:
            feed.watcher_count -= 1
            if not feed.watcher_count:
                feed.stop()
                if self._feeds.get(key) is feed:
                    del self._feeds[key]


class _Feed:
    """Looks at one job at each change, and every second, for as long as somebody watches."""

    def __init__(
        self, changes: Changes, job_id: str, look: Callable[[], Awaitable[JobView]]
    ) -> None:
        self.begun = 0
        """Looks that were begun."""
        self.changed = asyncio.Event()
        """Set to look now."""
        self.watcher_count = 0
        self._changes = changes
        self._job_id = job_id
        self._look = look
        self._done = 0
        self._view: JobView | None = None
        self._failure: Exception | None = None
        self._turn = asyncio.Event()
        # Of nobody: the first watcher's call may end before the others'.
        self._task = asyncio.create_task(self._run(), name=f"watch {job_id}", context=Context())

    @property
    def is_over(self) -> bool:
        """Whether it looks no more."""
        return self._failure is not None

    def stop(self) -> None:
        """Look no more."""
        self._task.cancel()

    async def next(self, seen: int) -> tuple[JobView, int]:
        """Return what a look later than number ``seen`` showed, and its number; or raise."""
        while self._done <= seen and self._failure is None:
            await self._turn.wait()
        if self._failure is not None:
            raise self._failure
        if self._view is None:
            raise RuntimeError(f"a look at job {self._job_id} showed nothing")
        return self._view, self._done

    async def _run(self) -> None:
        with self._changes.of(self._job_id) as self.changed:
            while self._failure is None:
                self.changed.clear()
                self.begun += 1
                number = self.begun
                try:
                    self._view = await self._look()
                except Exception as failure:  # each watcher is told
                    self._failure = failure
                self._done = number
                self._turn.set()
                self._turn = asyncio.Event()
                with suppress(TimeoutError):
                    # Not wait_for, which on Python 3.11 swallows a cancellation that comes then.
                    async with asyncio.timeout(LOOK_AGAIN_SECONDS):
                        await self.changed.wait()
