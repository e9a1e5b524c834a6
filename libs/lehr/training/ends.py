"""RunEnd: why a run stopped; the words are those of the architecture."""

from __future__ import annotations

from enum import StrEnum


class RunEnd(StrEnum):
    """The one reason with which a run ends."""

    COMPLETED = "COMPLETED"
    EARLY_STOPPED = "EARLY_STOPPED"
    USER_STOPPED = "USER_STOPPED"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    DEADLINE_REACHED = "DEADLINE_REACHED"
    PREEMPTED = "PREEMPTED"
    NODE_LOST = "NODE_LOST"
    PLATFORM_FAULT = "PLATFORM_FAULT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    USER_ERROR = "USER_ERROR"
    NO_CAPACITY = "NO_CAPACITY"


#: Ends that are the platform's fault: the job is queued again and redone work is not billed.
PLATFORM_ENDS = frozenset({RunEnd.PREEMPTED, RunEnd.NODE_LOST, RunEnd.PLATFORM_FAULT})
#: Ends after which the trainer left a checkpoint because it was asked to stop.
STOPPED_ENDS = frozenset(
    {RunEnd.USER_STOPPED, RunEnd.BUDGET_EXHAUSTED, RunEnd.DEADLINE_REACHED, RunEnd.PREEMPTED}
)
