"""A run: one attempt of a job on one lease, and what its end means for the job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from lehr.ids import derived_id
from lehr.training.ends import RunEnd
from services.scheduler.domain.job import JobState

MESSAGE_LENGTH_MAX = 2000


class LeasePhase(StrEnum):
    """Where the lease of a run is; the words are the allocator's."""

    GRANTED = "GRANTED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"
    LOST = "LOST"
    CLOSED = "CLOSED"

    @property
    def is_over(self) -> bool:
        """The run can do nothing more; a lost lease may still hold its GPUs."""
        return self in (LeasePhase.LOST, LeasePhase.CLOSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What the scheduler needs to know of a lease, at one version."""

    lease_id: str
    tenant: str
    project: str
    job_id: str
    run_id: str
    attempt: int
    epoch: int
    tier: str
    phase: LeasePhase
    version: int
    close_reason: str = ""
    close_message: str = ""
    running_time: datetime | None = None

    @property
    def end(self) -> RunEnd:
        """Why it is over; a reason that we do not know counts as the platform's."""
        if not self.close_reason and self.phase is LeasePhase.LOST:
            return RunEnd.NODE_LOST
        try:
            return RunEnd(self.close_reason)
        except ValueError:
            return RunEnd.PLATFORM_FAULT

    @property
    def end_message(self) -> str:
        """The message of the end as it can be stored: a node may have written anything."""
        text = self.close_message[:MESSAGE_LENGTH_MAX].replace("\0", "\\x00")
        return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt; it lives until ``end`` is set."""

    run_id: str
    job_id: str
    tenant: str
    project: str
    ordinal: int
    lease_id: str
    epoch: int
    tier: str
    lease_version: int
    """Version of the lease that was taken in last; lower or equal ones say nothing new."""
    end: RunEnd | None = None
    end_message: str = ""
    create_time: datetime
    finish_time: datetime | None = None

    @property
    def is_live(self) -> bool:
        """Whether the run can still do anything."""
        return self.end is None

    def saw(self, lease: Lease) -> Run:
        """Return the run after a newer version of its lease was taken in."""
        return replace(self, lease_version=lease.version)

    def finish(self, lease: Lease, *, now: datetime) -> Run:
        """Return the run after its lease was closed or lost."""
        return replace(
            self,
            lease_version=lease.version,
            end=lease.end,
            end_message=lease.end_message,
            finish_time=now,
        )


def run_id_of(job_id: str, ordinal: int) -> str:
    """Return the id of a job's run; asking again for the same run gives the same id."""
    return derived_id("run", job_id, str(ordinal))


def state_after(end: RunEnd, *, stop_asked: bool, attempts_left: int) -> JobState:
    """Return the state of a job whose run has ended.

    Once a stop was acknowledged, how the run came down changes nothing any more, unless it had
    completed its training before it heard of the stop.
    """
    match end:
        case RunEnd.COMPLETED | RunEnd.EARLY_STOPPED:
            return JobState.SUCCEEDED  # an early stop is a success.
        case _ if stop_asked:
            return JobState.STOPPED
        case RunEnd.USER_STOPPED:
            return JobState.STOPPED
        case RunEnd.PREEMPTED:
            return JobState.QUEUED  # not the job's fault and no sign of a broken one.
        case RunEnd.NODE_LOST | RunEnd.PLATFORM_FAULT:
            return JobState.QUEUED if attempts_left > 0 else JobState.FAILED
        case RunEnd.BUDGET_EXHAUSTED | RunEnd.DEADLINE_REACHED | RunEnd.NO_CAPACITY:
            return JobState.FAILED
        case RunEnd.OUT_OF_MEMORY | RunEnd.USER_ERROR:
            return JobState.FAILED  # the same settings would fail in the same way.
        case _:
            assert_never(end)
