"""Says what is spooled: to JetStream at once, again when telemetry's watermark shows a loss."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Protocol

import nats.errors
from nats.aio.client import Client

from lehr import faults
from lehr.errors import NotFound, PlatformError
from lehr.events import codec, subjects
from lehr.logs import get_logger, metrics
from services.trainer_runner.agent import batches
from services.trainer_runner.agent.batches import Origin, Said
from services.trainer_runner.agent.disk import Disk
from services.trainer_runner.agent.spool import Spool
from services.trainer_runner.agent.wall import WallClock

PUBLISH_EVERY_SECONDS = 0.25
CONFIRM_EVERY_SECONDS = 1.0
PUBLISH_TIMEOUT_SECONDS = 5.0

STALL_SECONDS = 5.0
"""After so long without a growing watermark, what was published is taken for lost."""

_STALL_SECONDS_MAX = 60.0
_REPORTS_MAX = 1000
_LINES_MAX = 200
_AFTER_FAILURE_SECONDS = 5.0


class Telemetry(Protocol):
    """What telemetry is asked for."""

    async def open_series(self, origin: Origin) -> int:
        """Raise the fence and return the step up to which the series is stored."""
        ...

    async def watermark(self, origin: Origin) -> tuple[int, int]:
        """Return up to which report and which line a run is stored without a gap."""
        ...


class Reporter:
    """Feeds every spool of this node, those of ended runs too, until telemetry has it all."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        *,
        client: Client,
        telemetry: Telemetry,
        clock: WallClock,
        limit_bytes: int,
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._client = client
        self._telemetry = telemetry
        self._clock = clock
        self._limit_bytes = limit_bytes
        self._feeders: dict[str, tuple[Feeder, asyncio.Task[None]]] = {}
        self._log = get_logger()

    async def recover(self) -> None:
        """Go on with the spools that an earlier life left."""
        for path in sorted(self._folder.glob("*.sqlite")):
            spool = self._spool(path)
            try:
                self._feed(await spool.open())
            except (ValueError, sqlite3.Error) as problem:
                self._log.error("spool_unreadable", path=path.name, error=repr(problem))
                await spool.stop()
                path.rename(path.with_suffix(".broken"))

    async def report(self, origin: Origin) -> Spool:
        """Return the spool of a run; what is added to it is said from now on."""
        if known := self.spool_of(origin.run_id):
            known.reopen()
            return known
        spool = await self._spool(self._folder / f"{origin.run_id}.sqlite").open(origin)
        self._feed(spool)
        return spool

    def spool_of(self, run_id: str) -> Spool | None:
        """Return the spool of a run, if it is still there."""
        known = self._feeders.get(run_id)
        return known[0].spool if known else None

    async def close_orphans(self, living: Sequence[str]) -> None:
        """Add nothing more to spools of runs that are not living."""
        for feeder, _ in list(self._feeders.values()):
            if feeder.spool.origin.run_id not in living and not feeder.spool.is_closed:
                await feeder.spool.close()

    async def stop(self) -> None:
        """Say no more; what is not confirmed stays on the disk."""
        for feeder, task in self._feeders.values():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await feeder.spool.stop()
        self._feeders.clear()

    def _spool(self, path: Path) -> Spool:
        return Spool(path, self._disk, clock=self._clock, limit_bytes=self._limit_bytes)

    def _feed(self, spool: Spool) -> None:
        feeder = Feeder(spool, client=self._client, telemetry=self._telemetry, clock=self._clock)
        task = asyncio.create_task(self._run(feeder), name=f"feed {spool.origin.run_id}")
        self._feeders[spool.origin.run_id] = (feeder, task)

    async def _run(self, feeder: Feeder) -> None:
        run_id = feeder.spool.origin.run_id
        while True:
            try:
                await feeder.run()
                if feeder.spool.is_closed:
                    break
            except Exception:  # the edge: what one run said must not end the agent.
                self._log.exception("feeder_failed", run_id=run_id)
                await asyncio.sleep(_AFTER_FAILURE_SECONDS)
        del self._feeders[run_id]
        await feeder.spool.remove()
        self._log.info("spool_confirmed", run_id=run_id)

    def measure(self) -> None:
        """Show how much waits."""
        size = sum(feeder.spool.size_bytes for feeder, _ in self._feeders.values())
        metrics.put("agent_spool_bytes", size)


class Channel:
    """How far one kind of row has come: on to a stream, and into telemetry."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.published = 0
        self.confirmed = 0
        self.round = 0
        """How often we have begun again from the watermark."""
        self._waits_since: float | None = None

    def confirm(self, mark: int, *, now: float) -> None:
        """Take telemetry's watermark; what was confirmed once is gone here and stays confirmed."""
        mark = max(mark, self.confirmed)
        if mark != self.confirmed:
            self.confirmed = mark
            self._waits_since = now
        # After a restart nothing says how far we were; the watermark does.
        self.published = max(self.published, mark)
        if self.published == mark:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now

    def pause(self) -> None:
        """Telemetry cannot be asked, or could not have heard: that is no loss."""
        self._waits_since = None

    def begin_again_if_lost(self, *, now: float) -> bool:
        """Go back to the watermark if it has not moved for long."""
        patience = min(STALL_SECONDS * 2**self.round, _STALL_SECONDS_MAX)
        if self._waits_since is None or now - self._waits_since < patience:
            return False
        self.round += 1
        self.published = self.confirmed
        self._waits_since = None
        return True


class Feeder:
    """Publishes one spool in order and trims it to telemetry's watermark."""

    def __init__(
        self, spool: Spool, *, client: Client, telemetry: Telemetry, clock: WallClock
    ) -> None:
        self.spool = spool
        self._client = client
        self._stream = client.jetstream(timeout=PUBLISH_TIMEOUT_SECONDS)
        self._telemetry = telemetry
        self._clock = clock
        self._reports = Channel("RUNS")
        self._lines = Channel("LOGS")
        self._log = get_logger()

    async def run(self) -> None:
        """Go on until the spool is closed and confirmed."""
        publishing = asyncio.create_task(self._publish_for_ever())
        confirming = asyncio.create_task(self._confirm_until_done())
        try:
            done, _ = await asyncio.wait(
                [publishing, confirming], return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        finally:
            publishing.cancel()
            confirming.cancel()
            await asyncio.gather(publishing, confirming, return_exceptions=True)

    async def _publish_for_ever(self) -> None:
        while True:
            pause = PUBLISH_EVERY_SECONDS
            try:
                if self.spool.is_opened and self._client.is_connected:
                    await self._publish_new()
            except (nats.errors.Error, OSError, TimeoutError, PlatformError) as problem:
                # A warning each round would tell nothing that the connection does not tell.
                self._log.debug("reports_not_published", error=repr(problem))
                pause = 1.0
            except sqlite3.Error as problem:
                self._log.warning("spool_not_read", error=repr(problem))
                pause = 1.0
            await asyncio.sleep(pause)

    async def _publish_new(self) -> None:
        origin, spool = self.spool.origin, self.spool
        full = True
        while full:
            reports = await spool.reports_after(self._reports.published, count=_REPORTS_MAX)
            await self._publish(self._reports, batches.report_events(origin, reports))
            lines = await spool.lines_after(self._lines.published, count=_LINES_MAX)
            await self._publish(self._lines, batches.log_events(origin, lines))
            full = len(reports) == _REPORTS_MAX or len(lines) == _LINES_MAX

    async def _publish(self, channel: Channel, events: Sequence[Said]) -> None:
        round_number = channel.round
        for said in events:
            wrapped = batches.envelope(said, time=self._clock.now(), round_number=round_number)
            await self._stream.publish(
                subjects.build(said.event),
                codec.encode(wrapped),
                stream=channel.stream,
                headers={"Nats-Msg-Id": wrapped.event_id, "Content-Type": codec.CONTENT_TYPE},
            )
            await faults.hit("trainer_runner.published")
            if channel.round != round_number:
                return
            channel.published = said.last_sequence
            metrics.add("events_published", type=wrapped.type)

    async def _confirm_until_done(self) -> None:
        while True:
            try:
                await self._open_series()
                if await self._is_confirmed():
                    return
            except PlatformError as problem:
                self._log.debug("watermark_unknown", error=repr(problem))
                self._reports.pause()
                self._lines.pause()
            except sqlite3.Error as problem:
                self._log.warning("spool_not_trimmed", error=repr(problem))
            await asyncio.sleep(CONFIRM_EVERY_SECONDS)

    async def _open_series(self) -> None:
        if not self.spool.is_opened:
            await self._telemetry.open_series(self.spool.origin)
            self.spool.mark_opened()

    async def _is_confirmed(self) -> bool:
        """Compare with telemetry; say whether the spool is closed and all of it is stored."""
        spool = self.spool
        said = (spool.last_report, spool.last_line)
        if (self._reports.confirmed, self._lines.confirmed) != said:
            await self._confirm(said)
        if spool.is_abandoned:
            self._log.error("spool_given_up", run_id=spool.origin.run_id, said=said)
            return True
        all_stored = (self._reports.confirmed, self._lines.confirmed) == said
        return spool.is_closed and all_stored and said == (spool.last_report, spool.last_line)

    async def _confirm(self, said: tuple[int, int]) -> None:
        try:
            reports, lines = await self._telemetry.watermark(self.spool.origin)
        except NotFound:
            reports, lines = 0, 0
        now = monotonic()
        # A watermark beyond what was said proves nothing about what will be.
        self._reports.confirm(min(reports, said[0]), now=now)
        self._lines.confirm(min(lines, said[1]), now=now)
        await self.spool.trim(
            report_sequence=self._reports.confirmed, line_sequence=self._lines.confirmed
        )
        for channel in (self._reports, self._lines):
            if not self._client.is_connected:
                channel.pause()
            elif channel.begin_again_if_lost(now=now):
                self._log.warning(
                    "reports_said_again",
                    run_id=self.spool.origin.run_id,
                    stream=channel.stream,
                    after=channel.confirmed,
                    round=channel.round,
                )
