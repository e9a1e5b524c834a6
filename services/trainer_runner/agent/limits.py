"""When a run must stop or be killed although nobody could tell the node so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from lehr.training.ends import RunEnd

_MARGIN = 1.5
_LEAST_RESERVE_SECONDS = 0.2


class Force(Enum):
    """How hard a trainer is asked to end."""

    ASK = auto()
    """The control pipe alone: it saves the last whole step."""
    TERMINATE = auto()
    """SIGTERM as well."""
    KILL = auto()
    """SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The end of what a run may compute."""

    seconds: float
    """From its beginning."""
    end: RunEnd


def force_due(asked_seconds: float, *, has_begun: bool, grace: float, kill_after: float) -> Force:
    """Say how hard a trainer that was asked to stop so long ago must be pushed now.

    One that has not begun to compute has nothing to save.
    """
    if not has_begun or asked_seconds >= grace + kill_after:
        return Force.KILL
    return Force.TERMINATE if asked_seconds >= grace else Force.ASK


def reserve_seconds(*, step_seconds: float, save_seconds: float) -> float:
    """Return what a trainer probably needs from being asked to stop until it has saved."""
    return _MARGIN * (step_seconds + save_seconds) + _LEAST_RESERVE_SECONDS


def limit_reached(
    computed_seconds: float, *, funded: float | None, deadline: float | None, reserve: float
) -> Limit | None:
    """Return the limit at which a run that has computed so long must begin to stop, if any.

    The reserve for saving never takes more than half of what was allowed.
    """
    limits = [(funded, RunEnd.BUDGET_EXHAUSTED), (deadline, RunEnd.DEADLINE_REACHED)]
    known = [Limit(seconds=seconds, end=end) for seconds, end in limits if seconds is not None]
    if not known:
        return None
    first = min(known, key=lambda limit: limit.seconds)
    is_near = computed_seconds >= first.seconds - min(reserve, first.seconds / 2)
    return first if is_near else None


def is_stalled(still_seconds: float, *, longest_step: float, timeout: float) -> bool:
    """Say whether a trainer that has not moved for so long counts as hanging."""
    return still_seconds > max(timeout, 10 * longest_step)
