"""What an agent asks of other services, in words of its own; their messages stop here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import grpc.aio

from lehr.api.catalog.v1 import catalog_pb2 as catalog
from lehr.api.catalog.v1.catalog_pb2_grpc import CatalogServiceStub
from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2 as store
from lehr.api.checkpoint_store.v1.checkpoint_store_pb2_grpc import CheckpointStoreServiceStub
from lehr.api.common.v1 import common_pb2 as common
from lehr.api.scheduler.v1 import scheduler_pb2 as scheduler
from lehr.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from lehr.api.telemetry.v1 import telemetry_pb2 as telemetry
from lehr.api.telemetry.v1.telemetry_pb2_grpc import TelemetryServiceStub
from lehr.rpc.auth import acting_for
from lehr.rpc.client import raises_platform_errors
from services.trainer_runner.agent.batches import Origin
from services.trainer_runner.agent.leases import Grant
from services.trainer_runner.agent.staging import Staged

_COMMIT_SECONDS_MIN = 60.0
_COMMIT_BYTES_PER_SECOND = 50_000_000
"""The store reads and hashes every byte before it answers."""

_WATERMARK_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLink:
    """One file with a signed address."""

    name: str
    size_bytes: int
    sha256: str
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What the scheduler knows of a run."""

    spec_json: str
    spec_digest: str
    model_id: str
    model_name: str
    model_revision: str
    dataset_id: str
    dataset_revision: str
    validation_dataset_id: str
    validation_revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where a job goes on."""

    step: int
    """0 for a fresh start."""
    files: tuple[FileLink, ...]
    skipped: tuple[str, ...]
    """Newer checkpoints that do not verify, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Where a checkpoint goes."""

    checkpoint_id: str
    files: tuple[FileLink, ...]
    is_committed: bool


class Peers:
    """The services that an agent calls; every method raises PlatformError."""

    def __init__(self, channel: Callable[[str], grpc.aio.Channel]) -> None:
        self._scheduler = SchedulerServiceStub(channel("scheduler"))
        self._catalog = CatalogServiceStub(channel("catalog"))
        self._store = CheckpointStoreServiceStub(channel("checkpoint_store"))
        self._telemetry = TelemetryServiceStub(channel("telemetry"))

    async def run_plan(self, grant: Grant) -> RunPlan:
        """Ask the scheduler what to run."""
        request = scheduler.GetRunPlanRequest(lease_id=grant.lease_id, epoch=grant.epoch)
        with _on_behalf_of(grant):
            found = await self._scheduler.GetRunPlan(request)
        return RunPlan(
            spec_json=found.spec_json,
            spec_digest=found.spec_digest,
            model_id=found.model_id,
            model_name=found.model_name,
            model_revision=found.model_revision,
            dataset_id=found.dataset_id,
            dataset_revision=found.dataset_revision,
            validation_dataset_id=found.validation_dataset_id,
            validation_revision=found.validation_revision,
        )

    async def model_files(self, grant: Grant, model_id: str) -> tuple[str, tuple[FileLink, ...]]:
        """Return the revision of a model and its files."""
        with _on_behalf_of(grant):
            found = await self._catalog.DownloadFiles(catalog.DownloadFilesRequest(model=model_id))
        return found.revision, _links(found.files)

    async def dataset_files(
        self, grant: Grant, dataset_id: str
    ) -> tuple[str, tuple[FileLink, ...]]:
        """Return the revision of a dataset, its canonical rows, images and token tables."""
        request = catalog.DownloadFilesRequest(rows_of=dataset_id)
        with _on_behalf_of(grant):
            found = await self._catalog.DownloadFiles(request)
        return found.revision, _links(found.files)

    async def open_checkpoints(self, grant: Grant) -> ResumePoint:
        """Raise the job's fence and return where it goes on."""
        with _on_behalf_of(grant):
            found = await self._store.Open(
                store.OpenRequest(job_id=grant.job_id, epoch=grant.epoch), timeout=60
            )
        return ResumePoint(
            step=found.resume_from.step if found.HasField("resume_from") else 0,
            files=_links(found.files),
            skipped=tuple(found.skipped),
        )

    async def begin_upload(
        self, grant: Grant, staged: Staged, files: Sequence[FileLink], *, max_checkpoints: int
    ) -> Upload:
        """Register an upload; the same one again gives fresh addresses."""
        request = store.BeginRequest(
            job_id=grant.job_id,
            epoch=grant.epoch,
            step=staged.step,
            is_ordinary=staged.is_ordinary,
            is_final=staged.is_final,
            is_resumable=staged.is_resumable,
            eval_loss=staged.eval_loss,
            files=[
                common.FileLink(name=one.name, size_bytes=one.size_bytes, sha256=one.sha256)
                for one in files
            ],
            max_checkpoints=max_checkpoints,
        )
        with _on_behalf_of(grant):
            found = await self._store.Begin(request)
        return Upload(
            checkpoint_id=found.checkpoint_id,
            files=_links(found.files),
            is_committed=found.is_committed,
        )

    async def commit_upload(self, grant: Grant, upload: Upload, *, size_bytes: int) -> int:
        """Make a checkpoint visible; return the bytes that the store says it holds."""
        seconds = _COMMIT_SECONDS_MIN + size_bytes / _COMMIT_BYTES_PER_SECOND
        request = store.CommitRequest(checkpoint_id=upload.checkpoint_id, epoch=grant.epoch)
        with _on_behalf_of(grant):
            found = await self._store.Commit(request, timeout=seconds)
        return found.checkpoint.size_bytes

    async def abort_upload(self, grant: Grant, checkpoint_id: str) -> None:
        """Give an upload up."""
        request = store.AbortRequest(checkpoint_id=checkpoint_id, epoch=grant.epoch)
        with _on_behalf_of(grant):
            await self._store.Abort(request)

    async def open_series(self, origin: Origin) -> int:
        """Raise the fence of a job's series; return the step up to which it is stored."""
        request = telemetry.OpenSeriesRequest(
            job_id=origin.job_id,
            run_id=origin.run_id,
            epoch=origin.epoch,
            resume_step=origin.resume_step,
        )
        with acting_for(origin.tenant, origin.project), raises_platform_errors():
            return (await self._telemetry.OpenSeries(request)).stored_step

    async def watermark(self, origin: Origin) -> tuple[int, int]:
        """Return up to which report and which line a run is stored without a gap."""
        request = telemetry.GetWatermarkRequest(run_id=origin.run_id)
        with acting_for(origin.tenant, origin.project), raises_platform_errors():
            found = await self._telemetry.GetWatermark(request, timeout=_WATERMARK_SECONDS)
        return found.report_sequence, found.log_sequence


@contextmanager
def _on_behalf_of(grant: Grant) -> Iterator[None]:
    with acting_for(grant.tenant, grant.project), raises_platform_errors():
        yield


def _links(files: Sequence[common.FileLink]) -> tuple[FileLink, ...]:
    return tuple(
        FileLink(name=one.name, size_bytes=one.size_bytes, sha256=one.sha256, url=one.url)
        for one in files
    )
