"""What a lease's new version means for its run and its job: one pure decision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lehr.training.ends import RunEnd
from services.scheduler.domain.job import Job, JobState
from services.scheduler.domain.retry import RetryPolicy
from services.scheduler.domain.run import Lease, LeasePhase, Run, state_after

#: Ends that count towards the cap of attempts.
FAULTS = frozenset({RunEnd.NODE_LOST, RunEnd.PLATFORM_FAULT})

_WORDS = {
    RunEnd.COMPLETED: "trained to the end",
    RunEnd.EARLY_STOPPED: "stopped early because the validation loss no longer fell",
    RunEnd.USER_STOPPED: "stopped by request",
    RunEnd.BUDGET_EXHAUSTED: "the authorised cost is used up; resume with a higher one",
    RunEnd.DEADLINE_REACHED: "the authorised running time is used up; resume with a longer one",
    RunEnd.PREEMPTED: "the GPUs were taken back for another job",
    RunEnd.NODE_LOST: "the node was lost",
    RunEnd.PLATFORM_FAULT: "the platform failed",
    RunEnd.OUT_OF_MEMORY: "out of GPU memory",
    RunEnd.USER_ERROR: "the job cannot run as it is",
    RunEnd.NO_CAPACITY: "no GPUs became free",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Run and job afterwards; the job is None where it did not change."""

    run: Run
    job: Job | None


def advance(
    job: Job, run: Run, lease: Lease, *, retry: RetryPolicy, now: datetime
) -> Advance | None:
    """Take a version of a lease in; None when it says nothing new."""
    if not run.is_live or lease.version <= run.lease_version:
        return None
    if lease.phase.is_over:
        return _ended(job, run, lease, retry=retry, now=now)
    computes = lease.running_time is not None and lease.phase in (
        LeasePhase.RUNNING,
        LeasePhase.DRAINING,
    )
    if computes and lease.running_time is not None and job.state is JobState.STARTING:
        job = job.begin(running_time=lease.running_time, now=now)
        return Advance(run=run.saw(lease), job=job)
    return Advance(run=run.saw(lease), job=None)


def in_words(end: RunEnd, message: str) -> str:
    """Say why a run ended, for a person."""
    return f"{_WORDS[end]}: {message}" if message else _WORDS[end]


def _ended(job: Job, run: Run, lease: Lease, *, retry: RetryPolicy, now: datetime) -> Advance:
    end = lease.end
    run = run.finish(lease, now=now)
    state = state_after(
        end, stop_asked=job.stop_asked, attempts_left=retry.attempts_left(job.fault_count)
    )
    told = in_words(end, lease.end_message)
    # The report that computing began may have been overtaken by the end.
    job = replace(job, start_time=job.start_time or lease.running_time)
    if state is JobState.QUEUED:
        moved = _requeued(job, end, told, retry=retry, now=now)
    elif state is JobState.STOPPED and end is not RunEnd.USER_STOPPED:
        message = f"stopped by request; the run itself ended because {told}"
        moved = job.finish(state, RunEnd.USER_STOPPED, message=message, now=now)
    else:
        if state is JobState.FAILED and end in FAULTS:
            told += f"; given up after {job.fault_count + 1} faults"
        moved = job.finish(state, end, message=told, now=now)
    return Advance(run=run, job=moved)


def _requeued(job: Job, end: RunEnd, told: str, *, retry: RetryPolicy, now: datetime) -> Job:
    if end not in FAULTS:
        return job.requeue(
            fault_count=job.fault_count, wait=timedelta(0), message=f"{told}; queued again", now=now
        )
    fault_count = job.fault_count + 1
    wait = retry.wait_after(fault_count)
    message = (
        f"{told}; tried again after {wait.total_seconds():g} s "
        f"(fault {fault_count} of at most {retry.faults_max})"
    )
    return job.requeue(fault_count=fault_count, wait=wait, message=message, now=now)
