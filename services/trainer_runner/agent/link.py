"""How sure a node can be that its leases still hold."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic


class Link:
    """Remembers when the last accepted sync was sent, and wakes the next one."""

    def __init__(self, *, unconfirmed_after: float) -> None:
        self.is_draining = False
        """The agent is going away and starts nothing new."""
        self._unconfirmed_after = unconfirmed_after
        self._sent_at = monotonic()
        self._has_accepted = False
        self._accepted = asyncio.Event()
        self._woken = asyncio.Event()

    @property
    def silent_seconds(self) -> float:
        """Time since the last accepted sync was *sent*; its answer may have taken long."""
        return monotonic() - self._sent_at

    @property
    def is_confirmed(self) -> bool:
        """Whether leases may be relied on for what others see."""
        return self.silent_seconds < self._unconfirmed_after

    async def problem(self) -> str | None:
        """Return what is wrong with the link, or None; a check of readiness."""
        if self.is_confirmed and self._has_accepted:
            return None
        return f"no sync was accepted for {self.silent_seconds:.0f} s"

    def accept(self, sent_at: float) -> None:
        """A sync that was sent then has been accepted."""
        self._sent_at = max(self._sent_at, sent_at)
        self._has_accepted = True
        self._accepted.set()

    async def confirmed(self) -> None:
        """Return once leases may be relied on; at once while they may."""
        while not self.is_confirmed:
            self._accepted.clear()
            await self._accepted.wait()

    def wake(self) -> None:
        """Something has changed that the allocator should know before the next interval."""
        self._woken.set()

    async def pause(self, seconds: float) -> None:
        """Wait for so long, or until something has changed."""
        try:
            # Not wait_for: until Python 3.12 it loses a cancellation that comes with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
        finally:
            self._woken.clear()
