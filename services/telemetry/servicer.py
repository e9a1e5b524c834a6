"""gRPC in: proto to values, handler, proto."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import grpc.aio
from google.protobuf.timestamp_pb2 import Timestamp

from lehr.api.telemetry.v1 import telemetry_pb2 as pb
from lehr.api.telemetry.v1.telemetry_pb2_grpc import TelemetryServiceServicer
from lehr.errors import FieldViolation, InvalidArgument
from lehr.ids import parse_id
from lehr.postgres import Database
from lehr.rpc.auth import caller, tenant_of_caller
from lehr.rpc.times import instant_of
from lehr.text import storable
from services.telemetry.bell import Bell
from services.telemetry.domain.log import LogFilter, StoredLine
from services.telemetry.domain.owner import Owner
from services.telemetry.domain.series import MetricFilter, Run, StoredPoint
from services.telemetry.handlers import opening, reading

SERVICE = "lehr.api.telemetry.v1.TelemetryService"
_RUNNER = frozenset({"trainer_runner"})
POLICY: Mapping[str, frozenset[str]] = {"OpenSeries": _RUNNER, "GetWatermark": _RUNNER}

WORDS_MAX = 100
"""Names or levels that one question may ask for."""

Context = grpc.aio.ServicerContext[Any, Any]


class Servicer(TelemetryServiceServicer):
    """Telemetry's methods."""

    def __init__(self, *, db: Database, bell: Bell) -> None:
        self._db = db
        self._bell = bell

    async def OpenSeries(
        self, request: pb.OpenSeriesRequest, context: Context
    ) -> pb.OpenSeriesResponse:
        owner = _owner()
        run = Run(
            run_id=parse_id(request.run_id, "run"),
            tenant=owner.tenant,
            job_id=parse_id(request.job_id, "job"),
            epoch=_epoch(request.epoch),
            resume_step=request.resume_step,
        )
        stored_step = await opening.open_series(owner, run, db=self._db)
        return pb.OpenSeriesResponse(stored_step=stored_step)

    async def GetWatermark(
        self, request: pb.GetWatermarkRequest, context: Context
    ) -> pb.GetWatermarkResponse:
        run_id = parse_id(request.run_id, "run")
        reports, lines = await opening.watermarks(tenant_of_caller(), run_id, db=self._db)
        return pb.GetWatermarkResponse(report_sequence=reports, log_sequence=lines)

    async def QueryMetrics(
        self, request: pb.QueryMetricsRequest, context: Context
    ) -> pb.QueryMetricsResponse:
        points, has_more = await reading.query_metrics(
            _owner(),
            parse_id(request.job_id, "job"),
            MetricFilter(
                after_step=request.after_step,
                names=_words("names", request.names),
                with_superseded=request.include_superseded,
            ),
            limit=request.limit,
            db=self._db,
        )
        return pb.QueryMetricsResponse(points=_points(points), has_more=has_more)

    async def WatchMetrics(
        self, request: pb.WatchMetricsRequest, context: Context
    ) -> AsyncIterator[pb.WatchMetricsResponse]:
        pages = reading.watch_metrics(
            _owner(),
            parse_id(request.job_id, "job"),
            MetricFilter(after_step=request.after_step, names=_words("names", request.names)),
            db=self._db,
            bell=self._bell,
        )
        async for page in pages:
            yield pb.WatchMetricsResponse(points=_points(page))

    async def ReadLogs(self, request: pb.ReadLogsRequest, context: Context) -> pb.ReadLogsResponse:
        wanted = LogFilter(
            after_cursor=request.after_cursor,
            from_time=_time("from_time", request),
            to_time=_time("to_time", request),
            levels=_words("levels", request.levels),
        )
        lines, has_more = await reading.read_logs(
            _owner(), parse_id(request.job_id, "job"), wanted, limit=request.limit, db=self._db
        )
        return pb.ReadLogsResponse(lines=_lines(lines), has_more=has_more)

    async def WatchLogs(
        self, request: pb.WatchLogsRequest, context: Context
    ) -> AsyncIterator[pb.WatchLogsResponse]:
        pages = reading.watch_logs(
            _owner(),
            parse_id(request.job_id, "job"),
            after_cursor=request.after_cursor,
            db=self._db,
            bell=self._bell,
        )
        async for page in pages:
            yield pb.WatchLogsResponse(lines=_lines(page))


def _owner() -> Owner:
    return Owner(tenant=tenant_of_caller(), project=caller().project)


def _epoch(epoch: int) -> int:
    if epoch < 1:
        rule = "must be the positive fencing number of the lease"
        raise InvalidArgument(
            f"epoch {epoch} {rule}", fields=[FieldViolation(field="epoch", description=rule)]
        )
    return epoch


def _words(field: str, values: Sequence[str]) -> tuple[str, ...]:
    if len(values) > WORDS_MAX:
        rule = f"must hold at most {WORDS_MAX}; leave it empty for all"
        raise InvalidArgument(
            f"{field} {rule}", fields=[FieldViolation(field=field, description=rule)]
        )
    return tuple(map(storable, values))


def _points(points: Iterable[StoredPoint]) -> list[pb.Point]:
    return [
        pb.Point(
            step=point.step,
            name=point.name,
            value=point.value,
            time=_timestamp(point.time),
            epoch=point.epoch,
        )
        for point in points
    ]


def _lines(lines: Iterable[StoredLine]) -> list[pb.LogLine]:
    return [
        pb.LogLine(
            cursor=line.cursor,
            time=_timestamp(line.time),
            level=line.level,
            text=line.text,
            run_id=line.run_id,
        )
        for line in lines
    ]


def _timestamp(time: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


def _time(field: Literal["from_time", "to_time"], request: pb.ReadLogsRequest) -> datetime | None:
    return instant_of(getattr(request, field), field=field) if request.HasField(field) else None
