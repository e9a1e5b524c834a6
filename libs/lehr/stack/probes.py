"""Questions whose answer says that a part can serve."""

import asyncio
import json
from typing import Any

from lehr.stack.ports import LOOPBACK


class UnexpectedAnswerError(Exception):
    """The part answers, but not yet as it should."""


async def http_get(port: int, path: str) -> bytes:
    """Return the body of an answer 200 from a loopback port.

    Raises:
        UnexpectedAnswerError: another status.
        OSError: nobody listens.
    """
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {LOOPBACK}\r\n\r\n".encode())
        await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].decode(errors="replace")
    if status.split(" ")[1:2] != ["200"]:
        raise UnexpectedAnswerError(f"GET {path} answers {status or 'nothing'}: {body[:200]!r}")
    return body


async def http_get_json(port: int, path: str) -> Any:
    """Return a JSON answer; raises as ``http_get`` does."""
    return json.loads(await http_get(port, path))
