"""A job, the runner that reports about it, and somebody who reads."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import grpc.aio
import nats
from nats.aio.client import Client

from lehr.api.telemetry.v1 import telemetry_pb2 as pb
from lehr.api.telemetry.v1.telemetry_pb2_grpc import TelemetryServiceStub
from lehr.events import codec, subjects
from lehr.events.base import Event
from lehr.events.envelope import Envelope
from lehr.events.run import (
    LogEntry,
    RunBest,
    RunEvaluated,
    RunLogged,
    RunProgressed,
    StepPoint,
)
from lehr.ids import derived_id, event_uuid, new_id
from lehr.postgres import Database
from lehr.rpc.client import raises_platform_errors
from tests.support.one_service import OneService
from tests.support.servers import NatsForTests

if TYPE_CHECKING:
    from lehr.api.telemetry.v1.telemetry_pb2_grpc import TelemetryServiceAsyncStub

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


async def until(true: Callable[[], Awaitable[bool]], *, within: float = 20.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(within):
        while not await true():
            await asyncio.sleep(0.05)


def enveloped(event: Event) -> bytes:
    """Return the message of an event."""
    envelope: Envelope[Any] = Envelope(
        event_id=str(event_uuid()),
        source="/services/trainer_runner",
        type=event.type_name(),
        subject_id=event.subject_id,
        tenant=event.tenant,
        sequence=1,
        time=datetime.now(UTC),
        traceparent=None,
        data=event,
    )
    return codec.encode(envelope)


@dataclass(kw_only=True)
class Story:
    """One job with who speaks and who reads about it."""

    service: OneService
    bus: Client
    runner: "TelemetryServiceAsyncStub"
    person: "TelemetryServiceAsyncStub"
    channels: tuple[grpc.aio.Channel, ...]
    admin: Database
    job_id: str = field(default_factory=lambda: new_id("job"))

    @classmethod
    @contextlib.asynccontextmanager
    async def begin(
        cls, service: OneService, server: NatsForTests, admin: Database
    ) -> "AsyncIterator[Story]":
        """Open channels and connection."""
        bus = await nats.connect(server.url, user=server.user, password=server.password)
        async with (
            service.called_by("trainer_runner") as runner,
            service.called_by("gateway") as person,
        ):
            yield cls(
                service=service,
                bus=bus,
                runner=TelemetryServiceStub(runner),
                person=TelemetryServiceStub(person),
                channels=(runner, person),
                admin=admin,
            )
        await bus.close()

    def run_id(self, epoch: int = 1) -> str:
        """Return the run that has an epoch."""
        return derived_id("run", self.job_id, str(epoch))

    async def open(self, epoch: int = 1, *, resume_step: int = 0) -> int:
        """Open the series for a run."""
        request = pb.OpenSeriesRequest(
            job_id=self.job_id, run_id=self.run_id(epoch), epoch=epoch, resume_step=resume_step
        )
        with raises_platform_errors():
            return (await self.runner.OpenSeries(request)).stored_step

    def _about(self, epoch: int) -> dict[str, Any]:
        return {
            "tenant": "acme",
            "run_id": self.run_id(epoch),
            "job_id": self.job_id,
            "epoch": epoch,
        }

    def progressed(
        self, first: int, steps: dict[int, dict[str, float]], *, epoch: int = 1
    ) -> RunProgressed:
        """Say what some steps computed; reports are numbered from ``first``."""
        return RunProgressed(
            **self._about(epoch),
            first_sequence=first,
            last_sequence=first + len(steps) - 1,
            total_steps=100,
            points=tuple(
                StepPoint(step=step, time=NOON, values=values) for step, values in steps.items()
            ),
        )

    def losses(self, steps: Iterable[int], *, first: int = 0, epoch: int = 1) -> RunProgressed:
        """Say a loss of step plus a thousand times the epoch; numbers are those of the steps."""
        values = {step: {"loss": step + 1000.0 * epoch} for step in steps}
        return self.progressed(first or min(values), values, epoch=epoch)

    def evaluated(
        self, sequence: int, step: int, loss: float, *, epoch: int = 1, **values: float
    ) -> RunEvaluated:
        """Say what an evaluation found."""
        return RunEvaluated(
            **self._about(epoch),
            report_sequence=sequence,
            step=step,
            time=NOON,
            eval_loss=loss,
            values=values,
        )

    def best(self, sequence: int, step: int, *, epoch: int = 1) -> RunBest:
        """Say that a step is the Best."""
        return RunBest(
            **self._about(epoch), report_sequence=sequence, step=step, time=NOON, eval_loss=1.0
        )

    def logged(
        self,
        first: int,
        texts: Iterable[str],
        *,
        epoch: int = 1,
        level: str = "output",
        time: datetime = NOON,
    ) -> RunLogged:
        """Print lines, numbered from ``first``."""
        lines = tuple(
            LogEntry(sequence=first + place, time=time, level=level, text=text)
            for place, text in enumerate(texts)
        )
        return RunLogged(**self._about(epoch), lines=lines)

    async def say(self, *events: Event) -> None:
        """Publish events in this order."""
        for event in events:
            await self.bus.jetstream().publish(subjects.build(event), enveloped(event))

    async def watermark(self, epoch: int = 1) -> tuple[int, int]:
        """Return up to where reports and lines are stored."""
        with raises_platform_errors():
            request = pb.GetWatermarkRequest(run_id=self.run_id(epoch))
            told = await self.runner.GetWatermark(request)
        return told.report_sequence, told.log_sequence

    async def stored(self, *, reports: int = 0, lines: int = 0, epoch: int = 1) -> None:
        """Wait until the watermarks have come so far."""

        async def is_so() -> bool:
            have = await self.watermark(epoch)
            return have[0] >= reports and have[1] >= lines

        await until(is_so)

    async def query(
        self,
        *names: str,
        after_step: int = -1,
        limit: int = 0,
        superseded: bool = False,
    ) -> pb.QueryMetricsResponse:
        """Read points."""
        request = pb.QueryMetricsRequest(
            job_id=self.job_id,
            names=names,
            after_step=after_step,
            limit=limit,
            include_superseded=superseded,
        )
        with raises_platform_errors():
            return await self.person.QueryMetrics(request)

    async def series(self, name: str = "loss") -> dict[int, tuple[float, int]]:
        """Return value and epoch by step; a step that is there twice fails."""
        points = (await self.query(name, limit=10_000)).points
        found = {point.step: (float(point.value), point.epoch) for point in points}
        assert len(found) == len(points)
        return found

    async def logs(self, **wanted: Any) -> pb.ReadLogsResponse:
        """Read lines."""
        with raises_platform_errors():
            return await self.person.ReadLogs(pb.ReadLogsRequest(job_id=self.job_id, **wanted))

    async def texts(self, **wanted: Any) -> list[str]:
        """Return the text of lines."""
        return [line.text for line in (await self.logs(**wanted)).lines]

    async def restart(self) -> None:
        """Kill the process, if it still lives, and wait until a new one serves."""
        self.service.control.kill()
        self.service.control.start()
        for channel in self.channels:
            await channel.channel_ready()
