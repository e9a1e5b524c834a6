"""Gets everything that a trainer needs onto this disk, or says why that cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TypeVar

from pydantic import ValidationError

from lehr.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PlatformError,
)
from lehr.logs import get_logger
from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from lehr.training.spec import JobSpec
from services.trainer_runner.agent.batches import Origin
from services.trainer_runner.agent.datasets import (
    DatasetFiles,
    Datasets,
    check_revision,
    tokens_name,
)
from services.trainer_runner.agent.folders import RunFolder
from services.trainer_runner.agent.leases import Ending, Grant
from services.trainer_runner.agent.models import Models
from services.trainer_runner.agent.peers import FileLink, Peers, RunPlan
from services.trainer_runner.agent.spool import Spool
from services.trainer_runner.agent.transfer import BytesDiffer, Transfer

T = TypeVar("T")

#: What a user can do something about; anything else is ours.
_USERS_OWN = (NotFound, InvalidArgument, FailedPrecondition)

SERIES_SECONDS = 15.0
"""How long telemetry may delay a start; after that the series is opened while training goes on."""

PLAN_SECONDS = 30.0
"""The scheduler may need a moment to store the run of a lease that it has just acquired."""

DAMAGED_SECONDS = 10.0
"""Bytes that differ may have suffered on their way; after so long they are taken for damaged."""

_PAUSE_SECONDS_MAX = 10.0


class PreparationFailed(Exception):  # noqa: N818 - it says how the run ends.
    """The run cannot start."""

    def __init__(self, end: RunEnd, message: str) -> None:
        super().__init__(message)
        self.ending = Ending(end=end, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that can start."""

    plan: TrainingPlan
    spool: Spool
    stored_step: int
    """Step up to which telemetry has the series already; 0 if it could not be asked."""


class Preparation:
    """Prepares runs; each call that fails for lack of a peer is repeated for a while."""

    def __init__(
        self, peers: Peers, transfer: Transfer, models: Models, *, limit_seconds: float
    ) -> None:
        self._peers = peers
        self._transfer = transfer
        self._models = models
        self._limit_seconds = limit_seconds

    async def prepare(
        self, grant: Grant, folder: RunFolder, spool_for: Callable[[Origin], Awaitable[Spool]]
    ) -> Prepared:
        """Fetch plan, model, data and resume point, raise the fences, and write the plan file.

        Raises:
            PreparationFailed: with the end of the run and words for a person.
        """
        await asyncio.to_thread(folder.make)
        found = await self._patiently(
            "the run's plan", lambda: self._peers.run_plan(grant), not_yet=PLAN_SECONDS
        )
        spec = _spec(found)
        point = await self._patiently(
            "the resume point", lambda: self._peers.open_checkpoints(grant), ours=True
        )
        spool = await spool_for(origin_of(grant, resume_step=point.step))
        for words in point.skipped:
            spool.add_line(f"A checkpoint was skipped: {words}", level="warning")
        stored_step = await self._open_series(spool)
        model_dir = await self._model(grant, found, folder, spool)
        tokens = await asyncio.to_thread(tokens_name, model_dir, spec)
        datasets = Datasets(self._peers, self._transfer, folder.input_dir, tokens=tokens)
        dataset, validation = await self._datasets(grant, found, datasets)
        if point.files:
            await self._resume_files(grant, point.files, folder.resume_dir)
            spool.add_line(f"Resuming from the checkpoint of step {point.step}.", level="info")
        plan = TrainingPlan(
            job_id=grant.job_id,
            run_id=grant.run_id,
            epoch=grant.epoch,
            spec=spec,
            spec_digest=found.spec_digest,
            model_name=found.model_name,
            model_revision=found.model_revision,
            dataset_revision=found.dataset_revision,
            validation_revision=found.validation_revision or None,
            model_dir=model_dir,
            dataset_file=dataset.rows,
            images_file=dataset.images,
            tokens_file=dataset.tokens,
            validation_file=validation.rows if validation else None,
            validation_images_file=validation.images if validation else None,
            validation_tokens_file=validation.tokens if validation else None,
            resume_dir=folder.resume_dir if point.files else None,
            output_dir=folder.output_dir,
            progress_file=folder.progress_file,
        )
        text = plan.model_dump_json(indent=1)
        await asyncio.to_thread(folder.plan_file.write_text, text, encoding="utf-8")
        return Prepared(plan=plan, spool=spool, stored_step=stored_step)

    async def _open_series(self, spool: Spool) -> int:
        origin = spool.origin
        try:
            async with asyncio.timeout(SERIES_SECONDS):
                stored = await self._patiently(
                    "the series", lambda: self._peers.open_series(origin), ours=True
                )
        except (TimeoutError, PreparationFailed):
            get_logger().warning("series_not_opened", run_id=origin.run_id)
            return 0
        spool.mark_opened()
        return stored

    async def _model(self, grant: Grant, found: RunPlan, folder: RunFolder, spool: Spool) -> Path:
        async def get() -> Path:
            revision, files = await self._peers.model_files(grant, found.model_id)
            check_revision("model", found.model_name, revision, found.model_revision)
            return await self._models.get(revision, files, folder)

        place = await self._patiently(f"model {found.model_name}", get)
        spool.add_line(
            f"Model {found.model_name}@{found.model_revision[:12]} is ready.", level="info"
        )
        return place

    async def _datasets(
        self, grant: Grant, found: RunPlan, datasets: Datasets
    ) -> tuple[DatasetFiles, DatasetFiles | None]:
        training = await self._patiently(
            "the dataset",
            lambda: datasets.get(grant, found.dataset_id, found.dataset_revision, "dataset"),
        )
        if not found.validation_dataset_id:
            return training, None
        validation = await self._patiently(
            "the validation dataset",
            lambda: datasets.get(
                grant, found.validation_dataset_id, found.validation_revision, "validation"
            ),
        )
        return training, validation

    async def _resume_files(self, grant: Grant, files: Sequence[FileLink], folder: Path) -> None:
        links = list(files)

        async def get() -> None:
            await asyncio.to_thread(folder.mkdir, exist_ok=True)
            while links:
                try:
                    await self._transfer.download(links[0], folder)
                except PlatformError:
                    # The addresses may have expired; the fence is ours, so asking again is free.
                    left = {link.name for link in links}
                    point = await self._peers.open_checkpoints(grant)
                    links[:] = [link for link in point.files if link.name in left]
                    raise
                links.pop(0)

        await self._patiently("the checkpoint to resume from", get, ours=True)

    async def _patiently(
        self,
        what: str,
        work: Callable[[], Awaitable[T]],
        *,
        ours: bool = False,
        not_yet: float = 0.0,
    ) -> T:
        """Repeat ``work`` while it fails for lack of a peer.

        ``ours`` says that no failure is the user's; what is not found is waited for ``not_yet``.
        """
        began = monotonic()
        pause = 0.2
        while True:
            try:
                return await work()
            except PlatformError as problem:
                waited = monotonic() - began
                users_own = isinstance(problem, _USERS_OWN) and not problem.retryable
                patience = not_yet if users_own else self._patience(problem)
                if waited >= patience:
                    blame = users_own and not ours and not not_yet
                    end = RunEnd.USER_ERROR if blame else RunEnd.PLATFORM_FAULT
                    raise PreparationFailed(end, f"Getting {what} failed: {problem}") from None
                get_logger().warning("preparation_waits", what=what, error=str(problem))
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)

    def _patience(self, problem: PlatformError) -> float:
        limit = self._limit_seconds
        return min(DAMAGED_SECONDS, limit) if isinstance(problem, BytesDiffer) else limit


def origin_of(grant: Grant, *, resume_step: int) -> Origin:
    """Return whose reports a lease's run makes."""
    return Origin(
        run_id=grant.run_id,
        job_id=grant.job_id,
        tenant=grant.tenant,
        project=grant.project,
        epoch=grant.epoch,
        resume_step=resume_step,
    )


def _spec(found: RunPlan) -> JobSpec:
    try:
        return JobSpec.model_validate_json(found.spec_json)
    except ValidationError as problems:
        raise PreparationFailed(
            RunEnd.PLATFORM_FAULT,
            f"This node does not understand the job's spec ({problems.error_count()} problems); "
            "its software may be older than the scheduler's.",
        ) from None
