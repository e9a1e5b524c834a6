"""A small HTTP server for probes and Prometheus: /livez, /readyz and /metrics."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from lehr.logs import metrics

REQUEST_SECONDS = 5.0

Check = Callable[[], Awaitable[str | None]]
"""Returns None when all is well, otherwise what is not."""

_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Probes:
    """Answers whether the process lives, whether it may be sent work, and its metrics."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        """``checks`` may grow later; all must pass for the process to be ready."""
        self._checks = checks
        self._server: asyncio.Server | None = None

    async def start(self, listen: str) -> int:
        """Bind and answer; return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        host, _, port = listen.rpartition(":")
        self._server = await asyncio.start_server(self._serve, host.strip("[]"), int(port))
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()

    async def failing(self) -> dict[str, str]:
        """Return what keeps the process from being ready, by the name of the check."""
        found = await asyncio.gather(*(check() for check in self._checks.values()))
        return {name: told for name, told in zip(self._checks, found, strict=True) if told}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # A peer that sends nothing, or far too much, is nobody whom we wait for.
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                status, content_type, body = await self._answer(head)
                writer.write(
                    f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
                    f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, head: bytes) -> tuple[int, str, bytes]:
        method, _, rest = head.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method != b"GET":
            return 405, "text/plain", b"only GET\n"
        match path:
            case b"/livez":
                return 200, "text/plain", b"alive\n"
            case b"/readyz":
                failing = await self.failing()
                body = json.dumps({"ready": not failing, "failing": failing}).encode() + b"\n"
                return 503 if failing else 200, "application/json", body
            case b"/metrics":
                page, content_type = metrics.render()
                return 200, content_type, page
        return 404, "text/plain", b"try /livez, /readyz or /metrics\n"
