"""Checkpoints complete on this disk and not yet in the store: which are kept, which wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STAGED_MAX = 2
"""Checkpoints that wait or are being uploaded, beyond those that must not be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """One checkpoint folder on this disk."""

    path: Path
    step: int
    is_ordinary: bool
    is_best: bool
    is_final: bool
    is_resumable: bool
    is_last: bool
    """Saved because the run was asked to stop: the job resumes from it."""
    eval_loss: str
    """Validation loss as text, NaN and Infinity included; empty where it was not evaluated."""
    snapshot: float
    """CLOCK_MONOTONIC seconds at which the state was taken."""

    @property
    def must_stay(self) -> bool:
        """Whether it waits for as long as it takes."""
        return self.is_final or self.is_last


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What becomes of a new checkpoint and of those that wait."""

    is_accepted: bool
    dropped: Staged | None = None
    """The one that makes room."""


def admit(waiting: Sequence[Staged], new: Staged, *, uploading_count: int) -> Admission:
    """Decide on a new checkpoint; one that is being uploaded is never dropped.

    An ordinary one is left out when two are staged. A best, final or last one takes the place of
    the oldest ordinary that waits; a best may also replace an earlier best, best no more.
    """
    if len(waiting) + uploading_count < STAGED_MAX:
        return Admission(is_accepted=True)
    if not (new.is_best or new.must_stay):
        return Admission(is_accepted=False)
    ordinary = [one for one in waiting if not one.is_best and not one.must_stay]
    outdone = [one for one in waiting if one.is_best and not one.must_stay] if new.is_best else []
    replaceable = ordinary or outdone
    return Admission(is_accepted=True, dropped=replaceable[0] if replaceable else None)
