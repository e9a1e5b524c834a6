"""Why a run ended, from what its process said and how it went.

The process is not trusted: it cannot claim that the platform took its GPUs away. One that kills
itself is believed to have met a fault of the platform; the cap on retries bounds what that brings.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from lehr.training.ends import PLATFORM_ENDS, STOPPED_ENDS, RunEnd
from lehr.training.reports import DoneReport
from services.trainer_runner.agent.leases import Ending

_RESULTS = frozenset({RunEnd.COMPLETED, RunEnd.EARLY_STOPPED})
#: Only those who asked for them know of these.
_NOT_CLAIMED = (PLATFORM_ENDS | {RunEnd.NO_CAPACITY}) - {RunEnd.PLATFORM_FAULT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a trainer process went."""

    code: int
    """Exit status, or minus the number of the signal that ended it."""
    done: DoneReport | None = None
    """Its last report."""
    stop_reason: RunEnd | None = None
    """Why we had asked it to stop."""
    killed_for: Ending | None = None
    """Why we killed it, unless it was for being slow to stop."""
    is_out_of_memory: bool = False
    """The kernel or its own last words say so."""
    has_begun: bool = True
    """It had begun to compute."""
    has_final: bool = False
    """It left a final checkpoint."""


def ending_of(exited: Exit) -> Ending:
    """Return the one reason with which the run ends, and words for a person."""
    if exited.done is not None:
        return _claimed(exited.done, exited)
    if exited.killed_for is not None:
        return exited.killed_for
    if exited.stop_reason is not None:
        what = "had saved" if exited.has_begun else "had begun to compute"
        return Ending(
            end=exited.stop_reason,
            message=f"The trainer was stopped before it {what}; it {_how(exited.code)}.",
        )
    if exited.is_out_of_memory:
        return Ending(
            end=RunEnd.OUT_OF_MEMORY,
            message="The trainer ran out of memory: use a smaller batch or max_length, "
            "gradient_checkpointing, or a larger tier.",
        )
    return Ending(
        end=RunEnd.PLATFORM_FAULT,
        message=f"The trainer ended without a word; it {_how(exited.code)}.",
    )


def _claimed(done: DoneReport, exited: Exit) -> Ending:
    if done.end in _RESULTS and not exited.has_final:
        return Ending(
            end=RunEnd.PLATFORM_FAULT,
            message=f"The trainer reported {done.end} and left no final checkpoint.",
        )
    asked = done.end == exited.stop_reason
    if done.end in _NOT_CLAIMED and not asked:
        return Ending(
            end=RunEnd.PLATFORM_FAULT,
            message=f"The trainer reported {done.end}, which nobody had asked for.",
        )
    if done.end in STOPPED_ENDS and exited.stop_reason is not None and not asked:
        return Ending(end=exited.stop_reason, message=done.message)
    return Ending(end=done.end, message=done.message)


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
