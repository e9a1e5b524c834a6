"""The checkpoint store and telemetry as an agent sees them, written by hand."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import nats
import nats.errors
import nats.js.errors
from google.protobuf.duration_pb2 import Duration

from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2 as store_pb
from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2_grpc as store_grpc
from lehr.api.common.v1 import common_pb2
from lehr.api.telemetry.v1 import telemetry_pb2, telemetry_pb2_grpc
from lehr.errors import FailedPrecondition, Unavailable
from lehr.ids import derived_id
from lehr.objects import ObjectStore
from lehr.rpc.auth import caller
from tests.support.servers import NatsForTests

TENANT = "acme"
RUNNER = frozenset({"trainer_runner"})
ROWS = b'{"prompt": "a", "completion": "b"}\n'
WEIGHTS = b"weights of the base model" * 100
LINK_LIFE = timedelta(minutes=10)


def digest(content: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


MODEL_REVISION = digest(WEIGHTS)
DATASET_REVISION = digest(ROWS)


def lasting(seconds: float) -> Duration:
    """Return a length of time for a message."""
    message = Duration()
    message.FromTimedelta(timedelta(seconds=seconds))
    return message


@dataclass
class Stored:
    """One checkpoint as the fake store has it."""

    checkpoint_id: str
    request: store_pb.BeginRequest
    is_committed: bool = False

    def key(self, name: str) -> str:
        """Where a file lies."""
        return f"checkpoints/{TENANT}/{self.request.job_id}/{self.checkpoint_id}/{name}"


@dataclass
class FakeStore(store_grpc.CheckpointStoreServiceServicer):
    """A checkpoint store that verifies what it commits and knows of fences."""

    objects: ObjectStore
    fences: dict[str, int] = field(default_factory=dict)
    rows: dict[str, Stored] = field(default_factory=dict)
    is_down: bool = False
    refuses_commits: int = 0

    def committed(self, job_id: str) -> list[int]:
        """Return the committed steps of a job in order."""
        rows = (row for row in self.rows.values() if row.is_committed)
        return sorted(row.request.step for row in rows if row.request.job_id == job_id)

    async def Open(self, request: store_pb.OpenRequest, context: Any) -> store_pb.OpenResponse:
        self._check()
        self._fence(request.job_id, request.epoch)
        self.fences[request.job_id] = request.epoch
        rows = [
            row
            for row in self.rows.values()
            if row.is_committed and row.request.job_id == request.job_id
        ]
        if not rows:
            return store_pb.OpenResponse()
        newest = max(rows, key=lambda row: row.request.step)
        return store_pb.OpenResponse(
            resume_from=store_pb.Checkpoint(
                checkpoint_id=newest.checkpoint_id, step=newest.request.step
            ),
            files=[
                common_pb2.FileLink(
                    name=file.name,
                    size_bytes=file.size_bytes,
                    sha256=file.sha256,
                    url=self.objects.presign_get(newest.key(file.name), LINK_LIFE),
                )
                for file in newest.request.files
            ],
        )

    async def Begin(self, request: store_pb.BeginRequest, context: Any) -> store_pb.BeginResponse:
        self._check()
        self._fence(request.job_id, request.epoch)
        key = f"{request.epoch}:{request.step}"
        checkpoint_id = derived_id("ckpt", request.job_id, key)
        row = self.rows.setdefault(checkpoint_id, Stored(checkpoint_id, request))
        return store_pb.BeginResponse(
            checkpoint_id=checkpoint_id,
            is_committed=row.is_committed,
            files=[
                common_pb2.FileLink(
                    name=file.name, url=self.objects.presign_put(row.key(file.name), LINK_LIFE)
                )
                for file in request.files
            ],
        )

    async def Commit(
        self, request: store_pb.CommitRequest, context: Any
    ) -> store_pb.CommitResponse:
        self._check()
        row = self.rows[request.checkpoint_id]
        self._fence(row.request.job_id, request.epoch)
        if self.refuses_commits:
            self.refuses_commits -= 1
            raise FailedPrecondition("a file is not what was announced", reason="BYTES_DIFFER")
        for file in row.request.files:
            found = await self.objects.sha256(row.key(file.name))
            assert (found.sha256, found.size_bytes) == (file.sha256, file.size_bytes)
        row.is_committed = True
        size = sum(file.size_bytes for file in row.request.files)
        return store_pb.CommitResponse(
            checkpoint=store_pb.Checkpoint(
                checkpoint_id=row.checkpoint_id,
                step=row.request.step,
                state=store_pb.CHECKPOINT_STATE_COMMITTED,
                size_bytes=size,
            )
        )

    async def Abort(self, request: store_pb.AbortRequest, context: Any) -> store_pb.AbortResponse:
        return store_pb.AbortResponse()

    def _check(self) -> None:
        if self.is_down:
            raise Unavailable("the checkpoint store is down")
        assert caller().tenant == TENANT

    def _fence(self, job_id: str, epoch: int) -> None:
        if epoch < self.fences.get(job_id, 0):
            raise FailedPrecondition("a newer lease has the job", reason="FENCED")


@dataclass
class FakeTelemetry(telemetry_pb2_grpc.TelemetryServiceServicer):
    """Telemetry that reads the streams whenever it is asked, as far as it is allowed to."""

    nats_server: NatsForTests
    opened: list[telemetry_pb2.OpenSeriesRequest] = field(default_factory=list)
    stored_step: dict[str, int] = field(default_factory=dict)
    """By job."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """Every event of the streams, decoded, in order."""
    message_ids: list[str] = field(default_factory=list)
    reports: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    lines: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    is_down: bool = False
    is_deaf: bool = False
    """It answers and takes nothing in."""
    positions: dict[str, int] = field(default_factory=dict)

    def steps(self, run_id: str) -> list[int]:
        """Return the steps of a run's series, doubled ones twice."""
        found = [
            point["step"]
            for report in self.reports.get(run_id, {}).values()
            for point in report.get("points", [])
        ]
        return sorted(found)

    def log(self, run_id: str) -> list[str]:
        """Return the log of a run."""
        return [line["text"] for _, line in sorted(self.lines.get(run_id, {}).items())]

    async def OpenSeries(
        self, request: telemetry_pb2.OpenSeriesRequest, context: Any
    ) -> telemetry_pb2.OpenSeriesResponse:
        self._check()
        self.opened.append(request)
        stored = self.stored_step.get(request.job_id, 0)
        return telemetry_pb2.OpenSeriesResponse(stored_step=stored)

    async def GetWatermark(
        self, request: telemetry_pb2.GetWatermarkRequest, context: Any
    ) -> telemetry_pb2.GetWatermarkResponse:
        self._check()
        if not self.is_deaf:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                await self.catch_up()
        return telemetry_pb2.GetWatermarkResponse(
            report_sequence=_contiguous(self.reports.get(request.run_id, {})),
            log_sequence=_contiguous(self.lines.get(request.run_id, {})),
        )

    async def catch_up(self) -> None:
        """Read everything that is new in the streams."""
        client = await nats.connect(
            self.nats_server.url,
            user=self.nats_server.user,
            password=self.nats_server.password,
            allow_reconnect=False,
            connect_timeout=1,
        )
        try:
            for stream in ("RUNS", "LOGS"):
                await self._read(client.jetstream(timeout=2), stream)
        finally:
            await client.close()

    async def _read(self, context: Any, stream: str) -> None:
        while True:
            position = self.positions.get(stream, 0) + 1
            try:
                message = await context.get_msg(stream, seq=position, direct=False)
            except nats.js.errors.NotFoundError:
                return
            self.positions[stream] = position
            self.message_ids.append((message.headers or {})["Nats-Msg-Id"])
            self._take(json.loads(message.data))

    def _take(self, event: Mapping[str, Any]) -> None:
        self.events.append(dict(event))
        data = event["data"]
        if "lines" in data:
            rows = self.lines.setdefault(data["run_id"], {})
            rows.update({line["sequence"]: line for line in data["lines"]})
            return
        rows = self.reports.setdefault(data["run_id"], {})
        if "points" in data:
            for number, point in enumerate(data["points"]):
                rows[data["first_sequence"] + number] = {"points": [point]}
        else:
            rows[data["report_sequence"]] = {"type": event["type"], **data}

    def _check(self) -> None:
        if self.is_down:
            raise Unavailable("telemetry is down")
        assert caller().tenant == TENANT


def _contiguous(rows: Mapping[int, Any]) -> int:
    number = 0
    while number + 1 in rows:
        number += 1
    return number
