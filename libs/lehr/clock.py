"""The time, as something that is passed in.

Lease and billing times come from Postgres instead (``clock.now()``), so that one clock judges all.
"""

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What tells the time."""

    def now(self) -> datetime:
        """Return the present, aware and in UTC."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Return the present, aware and in UTC."""
        return datetime.now(UTC)
