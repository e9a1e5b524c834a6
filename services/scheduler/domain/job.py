"""A job: what a user asked to train, and the moves between its states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from lehr.money import Money
from lehr.training.ends import RunEnd
from lehr.training.spec import JobSpec
from services.scheduler.domain.errors import JobStateForbids


class JobState(StrEnum):
    """Where a job is; job.proto tells the model."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


S = JobState
#: A run can end from any live state, and its report may overtake the one before it.
ENDS = frozenset({S.QUEUED, S.STOPPED, S.SUCCEEDED, S.FAILED})
#: Every legal move.
MOVES: Mapping[JobState, frozenset[JobState]] = {
    S.QUEUED: frozenset({S.STARTING, S.STOPPED, S.FAILED}),
    S.STARTING: ENDS | {S.RUNNING, S.STOPPING},
    S.RUNNING: ENDS | {S.STOPPING},
    S.STOPPING: ENDS - {S.QUEUED},
    S.STOPPED: frozenset({S.QUEUED}),
    S.SUCCEEDED: frozenset(),
    S.FAILED: frozenset({S.QUEUED}),
}
#: No run exists or will exist unless somebody resumes the job.
RESTING = frozenset({S.STOPPED, S.SUCCEEDED, S.FAILED})
#: From where ResumeJob leads back to the queue, however a run had ended; that there is something to
#: continue from is for checkpoint_store to say.
RESUMABLE = frozenset({S.STOPPED, S.FAILED})
#: A run of the job exists.
LIVE = frozenset({S.STARTING, S.RUNNING, S.STOPPING})
#: Ends that come of the job's settings and data, which a resume does not change.
REPEATABLE_ENDS = frozenset({RunEnd.OUT_OF_MEMORY, RunEnd.USER_ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """What a person allows to be spent."""

    max_cost: Money
    max_duration: timedelta
    """Running time over all runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The immutable revisions that a job trains on."""

    model_id: str
    model_name: str
    model_revision: str
    dataset_id: str
    dataset_revision: str
    validation_dataset_id: str = ""
    validation_revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job at one version."""

    job_id: str
    tenant: str
    project: str
    principal: str
    """Who launched it."""
    spec: JobSpec
    plan_digest: str
    inputs: Inputs
    total_steps: int
    authorization: Authorization
    state: JobState = JobState.QUEUED
    end_reason: RunEnd | None = None
    state_message: str = ""
    version: int = 1
    run_ordinal: int = 0
    """Highest run that was begun or given up; its lease key is never used again."""
    fault_count: int = 0
    """Faults of the platform since the job was launched or resumed."""
    hold_ordinal: int = 1
    create_time: datetime
    update_time: datetime
    queue_time: datetime
    """Its place in the queue; a fault of the platform does not change it."""
    wait_time: datetime
    """Since when it waits for GPUs; backups are tried the later, the longer it waits."""
    not_before: datetime | None = None
    start_time: datetime | None = None
    stop_time: datetime | None = None
    finish_time: datetime | None = None

    @property
    def next_ordinal(self) -> int:
        """The run that is placed next."""
        return self.run_ordinal + 1

    @property
    def stop_asked(self) -> bool:
        """Whether a stop was acknowledged."""
        return self.state is JobState.STOPPING

    def start(self, ordinal: int, *, message: str, now: datetime) -> Job:
        """Return the job with GPUs for a run."""
        return self._move(
            S.STARTING, now=now, run_ordinal=ordinal, not_before=None, state_message=message
        )

    def begin(self, *, running_time: datetime, now: datetime) -> Job:
        """Return the job whose run computes; ``start_time`` is that of the first run."""
        return self._move(
            S.RUNNING, now=now, start_time=self.start_time or running_time, state_message=""
        )

    def stop(self, *, now: datetime) -> Job:
        """Return the job after a stop: at rest if it only waited, else on its way there.

        One that is stopping or has ended is returned as it is.
        """
        if self.state in RESTING or self.state is S.STOPPING:
            return self
        if self.state is S.QUEUED:
            message = "stopped by request before it got GPUs"
            stopped = self.finish(S.STOPPED, RunEnd.USER_STOPPED, message=message, now=now)
            return replace(stopped, stop_time=now)
        return self._move(
            S.STOPPING, now=now, stop_time=now, state_message="saves and ends, as was asked for"
        )

    def requeue(self, *, fault_count: int, wait: timedelta, message: str, now: datetime) -> Job:
        """Return the job after a fault of the platform, at its old place in the queue."""
        again = now + wait
        return self._move(
            S.QUEUED,
            now=now,
            fault_count=fault_count,
            wait_time=again,
            not_before=again,
            state_message=message,
        )

    def finish(self, state: JobState, end: RunEnd, *, message: str, now: datetime) -> Job:
        """Return the job at rest or at its end."""
        # A queued job may have asked for a lease that it does not know of yet; a later run must ask
        # under another ordinal, or it would be given that lease, which is closed by then.
        given_up = self.next_ordinal if self.state is S.QUEUED else self.run_ordinal
        return self._move(
            state,
            now=now,
            end_reason=end,
            finish_time=now,
            not_before=None,
            run_ordinal=given_up,
            state_message=message,
        )

    def resume(self, *, authorization: Authorization, now: datetime) -> Job:
        """Return the job back in the queue.

        Raises:
            JobStateForbids: it does not rest, or is finished.
        """
        self.check_resumable()
        warning = ""
        if self.end_reason in REPEATABLE_ENDS:
            warning = (
                f"resumed with the settings that ended in {self.end_reason}, so it may end at the "
                "same step again; to change them, create a new job"
            )
        return self._move(
            S.QUEUED,
            now=now,
            authorization=authorization,
            end_reason=None,
            state_message=warning,
            fault_count=0,
            hold_ordinal=self.hold_ordinal + 1,
            queue_time=now,
            wait_time=now,
            not_before=None,
            stop_time=None,
            finish_time=None,
        )

    def check_resumable(self) -> None:
        """Raise JobStateForbids unless the job may be resumed."""
        if self.state in RESUMABLE:
            return
        if self.state is S.SUCCEEDED:
            why = "it is finished; continue it as a new job"
        else:
            why = "it has not been stopped"
        raise JobStateForbids(self.job_id, self.state, S.QUEUED, why=why)

    def _move(self, state: JobState, *, now: datetime, **changes: Any) -> Job:
        if state not in MOVES[self.state]:
            raise JobStateForbids(self.job_id, self.state, state)
        return replace(self, state=state, version=self.version + 1, update_time=now, **changes)
