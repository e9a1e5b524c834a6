"""Who may call now: the key, how much it has in progress, and that it still works."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from lehr.errors import Unavailable
from services.gateway.calls import Limits
from services.gateway.domain.keys import ApiKey, KeyRefused
from services.gateway.handlers import KeyRing

LOOK_AGAIN_SECONDS_MIN = 0.5
"""Least time between two looks at the key of a call."""


class Admission:
    """Lets calls in by their key, whatever they are made with."""

    def __init__(self, ring: KeyRing, limits: Limits) -> None:
        self._ring = ring
        self._limits = limits

    @asynccontextmanager
    async def one(self, authorization: str | None, *, is_stream: bool) -> AsyncIterator[ApiKey]:
        """Let one call in for as long as the block lasts, which ends with the key.

        Raises:
            KeyRefused: no key that works, or it was revoked or has expired inside the block.
            TooManyCalls: the key has as many in progress as it may have.
        """
        key = await self._ring.resolve(authorization)
        with self._limits.one(key.key_id, is_stream=is_stream):
            async with self._while_it_works(authorization):
                yield key

    @asynccontextmanager
    async def _while_it_works(self, authorization: str | None) -> AsyncIterator[None]:
        """End the block with KeyRefused when its key is revoked or expires.

        A key that cannot be looked up now is believed until it can.
        """
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        refused: list[KeyRefused] = []

        async def look() -> None:
            while not refused:
                await asyncio.sleep(max(self._ring.cache_seconds, LOOK_AGAIN_SECONDS_MIN))
                try:
                    await self._ring.resolve(authorization)
                except KeyRefused as refusal:
                    refused.append(refusal)
                except Unavailable:
                    continue
            task.cancel()

        looking = asyncio.create_task(look(), name="look at the key again")
        try:
            yield
        except asyncio.CancelledError:
            if not refused:
                raise
            task.uncancel()
            raise refused[0] from None
        finally:
            looking.cancel()
