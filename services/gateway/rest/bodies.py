"""The body of a request: not larger than expected, and not waited for without an end."""

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from services.gateway.rest.errors import BodyTimedOut, BodyTooLarge

JSON_BYTES_MAX = 2**20
"""Largest body that is read as a whole, as large as a request by gRPC; 500 files with their names
and digests need a tenth of it."""

PIECE_BYTES = 2**19
"""Bytes that are handed on at a time of a body that is streamed."""

_KEY = "lehr.body"


class Body:
    """Stands between a request and its reader: ``receive`` for ASGI."""

    def __init__(self, receive: Receive, *, idle_seconds: float) -> None:
        self._receive = receive
        self._idle_seconds = idle_seconds
        self._is_whole = False
        self._bytes = 0
        self.bytes_max: int | None = JSON_BYTES_MAX
        """None for a body that is not kept."""

    async def receive(self) -> Message:
        """Return the next piece; after the last one it waits for the end of the connection.

        Raises:
            BodyTooLarge: there is more than ``bytes_max``.
            BodyTimedOut: nothing came for ``idle_seconds``.
        """
        if self._is_whole:
            return await self._receive()
        try:
            async with asyncio.timeout(self._idle_seconds):
                message = await self._receive()
        except TimeoutError:
            raise BodyTimedOut(
                f"after {self._bytes} bytes of the body nothing came for {self._idle_seconds:g} s;"
                " send it again",
                received_bytes=self._bytes,
            ) from None
        self._bytes += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if self.bytes_max is not None and self._bytes > self.bytes_max:
            raise BodyTooLarge(
                f"the body has more than {self.bytes_max} bytes, which is the most that is taken"
                " here",
                bytes_max=self.bytes_max,
            )
        return message

    def enter(self, scope: Scope) -> None:
        """Make the body known to whoever streams it."""
        scope[_KEY] = self


async def pieces(request: Request) -> AsyncIterator[bytes]:
    """Yield a body of any size in pieces of PIECE_BYTES, of which two are in memory at most.

    Raises:
        BodyTimedOut: the rest does not come.
        ClientDisconnect: the caller is gone.
    """
    body: Body = request.scope[_KEY]
    body.bytes_max = None
    gathered = bytearray()
    async for chunk in request.stream():
        gathered += chunk
        while len(gathered) >= PIECE_BYTES:
            yield bytes(gathered[:PIECE_BYTES])
            del gathered[:PIECE_BYTES]
    if gathered:
        yield bytes(gathered)
