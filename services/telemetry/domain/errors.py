"""Why telemetry refuses something."""

from lehr.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound


class Fenced(FailedPrecondition):
    """A newer run of the job has taken over."""

    reason = "FENCED"

    def __init__(self, job_id: str, *, epoch: int, fence_epoch: int) -> None:
        super().__init__(
            f"epoch {epoch} of job {job_id} is over: epoch {fence_epoch} has taken over; "
            "stop the process",
            job_id=job_id,
            epoch=epoch,
            fence_epoch=fence_epoch,
        )


class RunDiffers(FailedPrecondition):
    """The run, or its epoch, is known with other facts."""

    reason = "RUN_DIFFERS"

    def __init__(self, run_id: str, difference: str) -> None:
        super().__init__(
            f"run {run_id} cannot be opened so: {difference}", run_id=run_id, difference=difference
        )


class RunNotFound(NotFound):
    """No such run, or not of this tenant."""

    reason = "RUN_NOT_FOUND"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id}; OpenSeries makes one known", run_id=run_id)


class JobNotFound(NotFound):
    """No such job, or not of this tenant and project."""

    reason = "JOB_NOT_FOUND"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id}", job_id=job_id)


class RunNotOpened(Aborted):
    """A report of a run that nobody has opened yet; it may be opened in a moment."""

    reason = "RUN_NOT_OPENED"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} was not opened", run_id=run_id)


class ReportRefused(InvalidArgument):
    """A report that no run of ours can have made."""

    reason = "REPORT_REFUSED"

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(f"report of run {run_id}: {problem}", run_id=run_id, problem=problem)
