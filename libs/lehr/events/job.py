"""Facts about jobs, said by the scheduler."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from lehr.events.base import Event


class JobEvent(Event):
    """What every fact about a job carries."""

    NOUN: ClassVar[str] = "job"

    job_id: str
    project: str
    name: str
    run_ordinal: int
    """Run that the fact is about; 0 before the first."""

    @property
    def subject_id(self) -> str:
        """The job."""
        return self.job_id


class JobQueued(JobEvent):
    """The job waits for GPUs: after launch, after resume, or after a platform fault."""

    PAST: ClassVar[str] = "queued"

    tiers: tuple[str, ...]
    gpu_count: int
    queue_time: datetime
    after_end: str = ""
    """RunEnd of the run before, where there was one."""


class JobStarting(JobEvent):
    """The job has GPUs and its process is being started."""

    PAST: ClassVar[str] = "starting"

    run_id: str
    lease_id: str
    tier: str
    is_backup: bool
    """The tier is not the job's first choice."""


class JobRunning(JobEvent):
    """The job computes."""

    PAST: ClassVar[str] = "running"

    run_id: str
    start_time: datetime


class JobStopping(JobEvent):
    """The job was asked to stop; ``stop_time`` is the last billable instant."""

    PAST: ClassVar[str] = "stopping"

    run_id: str
    lease_id: str
    stop_time: datetime
    reason: str
    """RunEnd word."""


class JobFinished(JobEvent):
    """The job rests or ended."""

    PAST: ClassVar[str] = "finished"

    state: str
    """STOPPED, SUCCEEDED or FAILED."""
    end_reason: str
    """RunEnd word."""
    message: str
    finish_time: datetime
    best_step: int | None = None
    last_step: int | None = None
