"""The wall clock of a node: for points and log lines only, never for anything that is billed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_FIRST = datetime(1970, 1, 1, tzinfo=UTC)


class WallClock:
    """Tells the time as this node believes it to be."""

    def __init__(self, offset: timedelta = timedelta(0)) -> None:
        """``offset`` is a test hook: how wrong the clock is."""
        self._offset = offset

    def now(self) -> datetime:
        """Return the present, aware and in UTC; not before 1970."""
        try:
            return max(datetime.now(UTC) + self._offset, _FIRST)
        except OverflowError:
            return _FIRST
