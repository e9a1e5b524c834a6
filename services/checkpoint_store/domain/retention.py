"""Which checkpoints are pruned: ordinary ones beyond the newest few, where age is the step."""

from collections.abc import Iterable

from services.checkpoint_store.domain.best import best_of
from services.checkpoint_store.domain.checkpoint import Checkpoint, Job


def victims(checkpoints: Iterable[Checkpoint], job: Job) -> tuple[Checkpoint, ...]:
    """Return what the job keeps no longer, oldest first.

    Ordinary is what is neither Best, nor final, nor pinned, nor being resumed from, nor announced
    as Best by its runner without its loss being known yet. Of these the newest ``max_checkpoints``
    stay. ``checkpoints`` must hold every visible one of the job, and the bar of its Best.
    """
    if job.max_checkpoints is None:
        return ()
    known = tuple(checkpoints)
    best = best_of(known)
    ordinary = sorted(
        (each for each in known if each.is_visible and not _is_kept(each, job, best)),
        key=lambda each: each.age,
    )
    # What a resume made obsolete does not compete with the steps of the run that counts.
    obsolete = [each for each in ordinary if each.is_superseded]
    current = [each for each in ordinary if not each.is_superseded]
    return (*obsolete, *current[: max(0, len(current) - job.max_checkpoints)])


def superseded_by(checkpoints: Iterable[Checkpoint], *, resume_step: int) -> tuple[Checkpoint, ...]:
    """Return what lies past the step from which a new run continues, oldest first."""
    past = (each for each in checkpoints if each.is_visible and each.step > resume_step)
    return tuple(sorted(past, key=lambda each: each.age))


def replaced_by(committed: Checkpoint, known: Iterable[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Return what an older run left at the same step and the new checkpoint stands for.

    A run that begins at the step at which the one before it ended saves that step again. One of
    which more is known, or which can be resumed from where the new one cannot, stays.
    """
    return tuple(
        each
        for each in known
        if each.is_visible
        and (each.step, each.is_superseded) == (committed.step, False)
        and each.epoch < committed.epoch
        and (committed.eval_loss_text or not each.eval_loss_text)
        and (committed.is_resumable or not each.is_resumable)
    )


def _is_kept(checkpoint: Checkpoint, job: Job, best: Checkpoint | None) -> bool:
    is_best = best is not None and checkpoint.checkpoint_id == best.checkpoint_id
    is_source = checkpoint.checkpoint_id == job.resume_source
    return (
        is_best
        or checkpoint.is_final
        or checkpoint.is_pinned
        or is_source
        or _is_expected_best(checkpoint, job)
    )


def _is_expected_best(checkpoint: Checkpoint, job: Job) -> bool:
    announced = (job.expected_best_epoch, job.expected_best_step)
    return not checkpoint.eval_loss_text and (checkpoint.epoch, checkpoint.step) == announced
