"""Long answers: who waits for one is told before his time is up what it hangs on."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from lehr.errors import PlatformError, Unavailable
from lehr.rpc.context import seconds_left
from services.catalog.handlers.shelves import Shelves
from services.catalog.tokens.tables import StillCounting

T = TypeVar("T")

ANSWER_SECONDS = 1.5
"""What is left of a caller's time when the answer is given up; counting gives up before that."""

PROBE_SECONDS = 0.75
"""How long a store that answers takes at most for the smallest question."""

_NOTHING = "uploads/none"


class StoreSilent(Unavailable):
    """The object store takes requests and answers none."""

    reason = "OBJECT_STORE_UNAVAILABLE"


class TakesLonger(Unavailable):
    """It is not the object store that is slow."""

    reason = "TAKES_LONGER"


async def in_time(shelves: Shelves, work: Awaitable[T]) -> T:
    """Return what ``work`` does, if that comes within the caller's time.

    Raises:
        StoreSilent, ObjectStoreUnavailable: the object store does not answer.
        StillCounting, TakesLonger: it does, and the caller should ask again.
    """
    left = seconds_left()
    patience = None if left is None else max(left - ANSWER_SECONDS, left / 2)
    try:
        async with asyncio.timeout(patience):
            return await work
    except (StillCounting, TimeoutError) as slow:
        await _check_store(shelves)
        if isinstance(slow, PlatformError):
            raise
        raise TakesLonger("the catalog needs longer for this; ask again in a moment") from None


async def _check_store(shelves: Shelves) -> None:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            await shelves.objects.stat(_NOTHING)
    except TimeoutError:
        raise StoreSilent(
            "the object store does not answer the catalog; ask again when it does"
        ) from None
