"""The parent's side: starts the child, tells it what to do, and cleans up after it."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from lehr.errors import Unavailable
from services.catalog.hub import wire

#: What a child may know of this process's environment.
_INHERITED = ("PATH", "PYTHONPATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR")


class ImportTimedOut(Unavailable):
    """A source was too slow."""

    reason = "IMPORT_TIMED_OUT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """Asks hubs and buckets, each question in a process of its own."""

    endpoint: str
    """Address of the hub."""
    allowed: str
    """Hosts with ports that may be connected to although they are not public."""
    folder: Path
    """Where children may write while they live."""
    answer_limit: timedelta = timedelta(seconds=120)
    """How long a question may take that fetches no files."""

    async def ask(self, operation: str, **request: Any) -> dict[str, Any]:
        """Return the answer to a question.

        Raises:
            PlatformError: what the child refused with.
            ImportTimedOut: there was none in time.
        """
        async with self.converse(operation, time_limit=self.answer_limit, **request) as child:
            async for message in child.messages():
                if "answer" in message:
                    found: dict[str, Any] = message["answer"]
                    return found
        raise wire.HubFault(f"{request['what']}: the process that asks for it has died; try again")

    @asynccontextmanager
    async def converse(
        self, operation: str, *, time_limit: timedelta, **request: Any
    ) -> "AsyncIterator[Conversation]":
        """Run a child while the block lasts; nothing of it is left afterwards.

        Raises:
            ImportTimedOut: the block took longer than ``time_limit``.
        """
        await asyncio.to_thread(self.folder.mkdir, parents=True, exist_ok=True)
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=self.folder))
        process = None
        try:
            async with asyncio.timeout(time_limit.total_seconds()):
                process = await self._start(folder)
                message = {"operation": operation, "allowed": self.allowed, **request}
                assert process.stdin is not None  # noqa: S101 - it was asked for.
                process.stdin.write(wire.encode(message))
                yield Conversation(process)
        except TimeoutError:
            raise ImportTimedOut(
                f"{request['what']} took longer than {time_limit.total_seconds():.0f} s; try again"
            ) from None
        finally:
            if process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _start(self, folder: Path) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "services.catalog.hub"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # What libraries print may hold signed addresses.
            stderr=asyncio.subprocess.DEVNULL,
            cwd=folder,
            env=self._environment(folder),
            limit=wire.LINE_BYTES_MAX,
            start_new_session=True,
        )

    def _environment(self, folder: Path) -> Mapping[str, str]:
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        return {
            **inherited,
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "HF_HOME": str(folder / "hub"),
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            # Its native client would connect past the guard.
            "HF_HUB_DISABLE_XET": "1",
            "MALLOC_ARENA_MAX": "2",
        }


class Conversation:
    """Messages of a living child."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what the child says until it ends.

        Raises:
            PlatformError: what it refused with.
        """
        assert self._process.stdout is not None  # noqa: S101 - it was asked for.
        async for line in self._process.stdout:
            message = wire.decode(line)
            if "refused" in message:
                raise wire.refused(message)
            yield message

    def put_away(self) -> None:
        """Tell the child that a file which it fetched is no longer needed."""
        assert self._process.stdin is not None  # noqa: S101 - it was asked for.
        self._process.stdin.write(wire.MORE)
