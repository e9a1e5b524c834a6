"""Why the checkpoint store refuses something."""

from collections.abc import Mapping
from itertools import islice

from lehr.errors import FailedPrecondition, NotFound, Stale

_WHY_MAX, _STEPS_MAX = 3, 50


class CheckpointNotFound(NotFound):
    """No such checkpoint, or not of this tenant and project."""

    reason = "CHECKPOINT_NOT_FOUND"

    def __init__(self, checkpoint_id: str) -> None:
        super().__init__(
            f"there is no checkpoint {checkpoint_id}; list those of the job",
            checkpoint_id=checkpoint_id,
        )


class JobNotFound(NotFound):
    """No such job, or not of this tenant and project, or nothing was ever saved of it."""

    reason = "JOB_NOT_FOUND"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id}", job_id=job_id)


class NoCheckpoint(NotFound):
    """The job has no Best or no final checkpoint to speak of."""

    reason = "NO_SUCH_CHECKPOINT"

    def __init__(self, job_id: str, role: str) -> None:
        super().__init__(
            f"job {job_id} has no {role} checkpoint; list those of the job",
            job_id=job_id,
            role=role,
        )


class FileNotInCheckpoint(NotFound):
    """The checkpoint has no file of that name."""

    reason = "FILE_NOT_IN_CHECKPOINT"

    def __init__(self, checkpoint_id: str, name: str) -> None:
        super().__init__(
            f"checkpoint {checkpoint_id} has no file {name[:80]!r}",
            checkpoint_id=checkpoint_id,
            file=name[:80],
        )


class Fenced(FailedPrecondition):
    """A newer run of the job has taken over; this one has no say any more."""

    reason = "FENCED"

    def __init__(self, job_id: str, *, epoch: int, fence_epoch: int) -> None:
        super().__init__(
            f"epoch {epoch} of job {job_id} is over: epoch {fence_epoch} has taken over; "
            "stop the process and delete what it staged",
            job_id=job_id,
            epoch=epoch,
            fence_epoch=fence_epoch,
        )


class NotOpened(FailedPrecondition):
    """The first call of a run must be Open."""

    reason = "NOT_OPENED"

    def __init__(self, job_id: str, *, epoch: int) -> None:
        super().__init__(
            f"job {job_id} was not opened for epoch {epoch}; call Open first",
            job_id=job_id,
            epoch=epoch,
        )


class UploadGivenUp(FailedPrecondition):
    """The upload was aborted or took too long; its place is not used again."""

    reason = "UPLOAD_GIVEN_UP"

    def __init__(self, checkpoint_id: str) -> None:
        super().__init__(
            f"the upload of checkpoint {checkpoint_id} was given up; save another one",
            checkpoint_id=checkpoint_id,
        )


class CheckpointDiffers(FailedPrecondition):
    """The step was committed already, with other bytes."""

    reason = "CHECKPOINT_DIFFERS"

    def __init__(self, checkpoint_id: str, *, step: int, file: str) -> None:
        super().__init__(
            f"step {step} was committed as {checkpoint_id} with another {file}; "
            "a committed checkpoint never changes",
            checkpoint_id=checkpoint_id,
            step=step,
            file=file,
        )


class FileMissing(FailedPrecondition):
    """A file of the manifest was not uploaded, or is gone."""

    reason = "FILE_MISSING"

    def __init__(self, checkpoint_id: str, file: str) -> None:
        super().__init__(
            f"{file} of checkpoint {checkpoint_id} is not stored; upload it, then commit again",
            checkpoint_id=checkpoint_id,
            file=file,
        )


class ChecksumMismatch(FailedPrecondition):
    """What is stored is not what was announced."""

    reason = "CHECKSUM_MISMATCH"

    def __init__(self, checkpoint_id: str, file: str, difference: str) -> None:
        super().__init__(
            f"{file} of checkpoint {checkpoint_id} is not what was announced: {difference}; "
            "upload it again, then commit again",
            checkpoint_id=checkpoint_id,
            file=file,
            difference=difference,
        )


class NothingVerifies(FailedPrecondition):
    """The job has checkpoints, and none of them can be read whole.

    Says why of the newest few and names the steps of the others: an error travels in a header, and
    a job may keep a thousand.
    """

    reason = "NO_CHECKPOINT_VERIFIES"

    def __init__(self, job_id: str, skipped: Mapping[int, str]) -> None:
        """Take what was passed over and why, by step, newest first."""
        told = [f"step {step}: {why}" for step, why in islice(skipped.items(), _WHY_MAX)]
        others = [str(step) for step in islice(skipped, _WHY_MAX, _WHY_MAX + _STEPS_MAX)]
        if others:
            told.append(f"likewise steps {', '.join(others)}")
        if len(skipped) > _WHY_MAX + _STEPS_MAX:
            told.append(f"and {len(skipped) - _WHY_MAX - _STEPS_MAX} more")
        super().__init__(
            f"job {job_id} cannot continue, for none of its checkpoints verifies; repair them in "
            f"storage, or create it again as a new job: {'; '.join(told)}",
            job_id=job_id,
            skipped_count=len(skipped),
        )


class CheckpointProtected(FailedPrecondition):
    """Best and final are deleted only when the request says so."""

    reason = "CHECKPOINT_PROTECTED"

    def __init__(self, checkpoint_id: str, role: str) -> None:
        super().__init__(
            f"checkpoint {checkpoint_id} is {role}; set allow_best_or_final to delete it",
            checkpoint_id=checkpoint_id,
            role=role,
        )


class CheckpointPinned(FailedPrecondition):
    """A person keeps the checkpoint."""

    reason = "CHECKPOINT_PINNED"

    def __init__(self, checkpoint_id: str) -> None:
        super().__init__(
            f"checkpoint {checkpoint_id} is pinned; unpin it to delete it",
            checkpoint_id=checkpoint_id,
        )


class CheckpointInUse(FailedPrecondition):
    """A run is starting from the checkpoint."""

    reason = "CHECKPOINT_IN_USE"

    def __init__(self, checkpoint_id: str, job_id: str) -> None:
        super().__init__(
            f"job {job_id} is resuming from checkpoint {checkpoint_id}; "
            "delete it when the job has saved its next one",
            checkpoint_id=checkpoint_id,
            job_id=job_id,
        )


class StateForbids(FailedPrecondition):
    """The checkpoint is not in a state in which that can be done."""

    reason = "CHECKPOINT_STATE_FORBIDS"

    def __init__(self, checkpoint_id: str, *, have: str, doing: str) -> None:
        super().__init__(
            f"checkpoint {checkpoint_id} is {have}, so it cannot be {doing}",
            checkpoint_id=checkpoint_id,
            have=have,
            doing=doing,
        )


class StaleCheckpoint(Stale):
    """Someone else changed the checkpoint since it was read."""

    reason = "STALE_CHECKPOINT"

    def __init__(self, checkpoint_id: str) -> None:
        super().__init__(
            f"checkpoint {checkpoint_id} changed meanwhile; ask again", checkpoint_id=checkpoint_id
        )
