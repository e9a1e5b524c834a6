"""Waits for what no single event tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], *, every: float = 0.05) -> None:
    """Return once ``condition`` holds; it is asked every so many seconds."""
    while not condition():  # noqa: ASYNC110 - it hangs on processes of the kernel, not on us.
        await asyncio.sleep(every)
