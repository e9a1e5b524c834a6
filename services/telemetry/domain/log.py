"""Lines of a job's log."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line as a run wrote it."""

    sequence: int
    """Number of the line in its run, from 1."""
    time: datetime
    level: str
    text: str
    """Without its newline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """What one message of a run says to the job's log."""

    tenant: str
    job_id: str
    run_id: str
    epoch: int
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """Which lines a reader wants."""

    after_cursor: int = 0
    from_time: datetime | None = None
    """Only lines at or after this time."""
    to_time: datetime | None = None
    """Only lines before this time."""
    levels: tuple[str, ...] = ()
    """Only these levels; empty for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLine:
    """One line with its place in the job's log."""

    cursor: int
    run_id: str
    time: datetime
    level: str
    text: str
