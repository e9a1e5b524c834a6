"""Bytes to and from signed addresses, verified by SHA-256 on this side too."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import httpx

from lehr.api.common.v1.common_pb2 import FileLink
from lehr.errors import FailedPrecondition, Unavailable

T = TypeVar("T")

CHUNK_BYTES = 1 << 20
TRIES = 6
"""The last one begins half a minute after the first, time for a server to be started again."""

Progress = Callable[[str, int], None]
"""Called with a file's name and the bytes of it that went through since the last call.

When a try begins again, the bytes of the failed one are taken back: the sum is the file's size.
"""


class TransferFailed(Unavailable):
    """The object store did not take or give a file."""

    reason = "TRANSFER_FAILED"


class FileCorrupt(FailedPrecondition):
    """A file that arrived is not the one that was announced."""

    reason = "FILE_CORRUPT"


def describe(path: Path, *, name: str | None = None) -> FileLink:
    """Return name, size and SHA-256 of a local file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return FileLink(
        name=name or path.name, size_bytes=path.stat().st_size, sha256=digest.hexdigest()
    )


async def upload(path: Path, link: FileLink, *, progress: Progress | None = None) -> None:
    """PUT a file to its signed address, from the start again when it fails.

    Raises:
        TransferFailed: after several tries, or at once where another one would not help.
    """
    headers = {"content-length": str(link.size_bytes)}
    told = _Told(link.name, progress)

    async def body() -> AsyncIterator[bytes]:
        with path.open("rb") as file:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield chunk
                told.add(len(chunk))

    async def put() -> None:
        answer = await http.put(link.url, content=body(), headers=headers)
        answer.raise_for_status()

    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        await _repeated(put, told, doing="uploaded")


async def download(
    links: Sequence[FileLink], folder: Path, *, progress: Progress | None = None
) -> None:
    """GET files into a folder; each appears under its name only when it is whole and verified.

    Raises:
        TransferFailed: the store did not give a file.
        FileCorrupt: a file is not what was announced.
    """
    for link in links:
        if Path(link.name).name != link.name or link.name in ("", ".", ".."):
            raise FileCorrupt(f"{link.name!r} is no file name", file=link.name)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        for link in links:
            part = folder / f".{link.name}.part"
            try:
                await _fetch(http, link, part, _Told(link.name, progress))
                os.replace(part, folder / link.name)
            finally:
                part.unlink(missing_ok=True)


async def _fetch(http: httpx.AsyncClient, link: FileLink, part: Path, told: _Told) -> None:
    async def get() -> str:
        digest = hashlib.sha256()
        async with http.stream("GET", link.url) as answer:
            answer.raise_for_status()
            with part.open("wb") as file:
                async for chunk in answer.aiter_bytes(CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
                    told.add(len(chunk))
        return digest.hexdigest()

    if await _repeated(get, told, doing="downloaded") != link.sha256:
        raise FileCorrupt(f"{link.name} does not have the announced SHA-256", file=link.name)


class _Told:
    """How much of a file its owner was told of."""

    def __init__(self, name: str, progress: Progress | None) -> None:
        self.name = name
        self._progress = progress
        self._bytes = 0

    def add(self, count: int) -> None:
        """Tell of more bytes."""
        self._bytes += count
        if self._progress is not None:
            self._progress(self.name, count)

    def take_back(self) -> None:
        """Tell that everything begins again."""
        if self._bytes:
            self.add(-self._bytes)


async def _repeated(work: Callable[[], Awaitable[T]], told: _Told, *, doing: str) -> T:
    """Do ``work`` until it is done."""
    tries = 0
    while True:
        try:
            return await work()
        except httpx.HTTPError as error:
            told.take_back()
            tries += 1
            if tries == TRIES or not _may_help(error):
                raise TransferFailed(
                    f"{told.name} could not be {doing}: {_words(error)}", file=told.name
                ) from None
            await asyncio.sleep(2.0 ** (tries - 1))


def _may_help(error: httpx.HTTPError) -> bool:
    """Return whether another try can end better."""
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        return status >= 500 or status in (408, 425, 429)
    return True


def _words(error: httpx.HTTPError) -> str:
    # The text of an HTTP error holds the signed address.
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        over = "; signed addresses work for an hour, begin again" if status == 403 else ""
        return f"the object store answered {status}{over}"
    return f"the object store does not answer ({type(error).__name__})"
