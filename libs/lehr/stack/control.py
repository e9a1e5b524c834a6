"""Commands to a living supervisor: one line of JSON there, one back, over a Unix socket."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from lehr.errors import PlatformError
from lehr.stack.errors import StackDown, UnknownPart

# Ending a part may take as long as it likes to, up to its kill.
_ANSWER_SECONDS = 60.0

Obey = Callable[[str, str], Awaitable[None]]
"""Does a command, given by name, to a part, given by name."""


async def serve(path: Path, obey: Obey) -> asyncio.Server:
    """Take commands, each with the name of a part."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked: dict[str, Any] = json.loads(await reader.readline())
            try:
                await obey(asked["command"], asked["part"])
                answered = {}
            except PlatformError as error:
                answered = {"reason": error.reason, "message": error.message}
            writer.write(json.dumps(answered).encode() + b"\n")
            await writer.drain()
        except (ValueError, KeyError, ConnectionError):
            # Half a line of somebody who went away asks nothing.
            return
        finally:
            writer.close()

    # The folder is private, and so are the commands of those who can reach it.
    return await asyncio.start_unix_server(answer, path)


def ask(path: str, command: str, part: str) -> None:
    """Give a command and wait until it is done.

    Raises:
        StackDown: nobody listens.
        UnknownPart: there is no such part.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(path)
            connection.sendall(json.dumps({"command": command, "part": part}).encode() + b"\n")
            line = connection.makefile("rb").readline()
        except OSError as error:
            raise StackDown(f"the supervisor does not answer: {error}") from error
    if not line:
        raise StackDown(f"the supervisor ended before {command} {part} was done")
    answered: dict[str, str] = json.loads(line)
    if answered:
        raise UnknownPart(answered["message"], reason=answered["reason"], part=part)
