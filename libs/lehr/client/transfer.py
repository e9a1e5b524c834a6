"""Bytes to and from signed addresses, verified by SHA-256 on this side too."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import httpx

from lehr.api.catalog.v1.upload_pb2 import PartLink, UploadFile
from lehr.api.common.v1.common_pb2 import FileLink
from lehr.errors import FailedPrecondition, Unavailable

T = TypeVar("T")

CHUNK_BYTES = 1 << 20
TRIES = 6
"""The last one begins half a minute after the first, time for a server to be started again."""

PARALLEL_PARTS = 3
"""Parts that are sent at the same time; more bring nothing."""

Progress = Callable[[str, int], None]
"""Called with a file's name and the bytes of it that went through since the last call.

When a try begins again, the bytes of the failed one are taken back. What an interrupted upload had
sent is told first, at once. So the sum is the file's size.
"""


class TransferFailed(Unavailable):
    """The object store did not take or give a file."""

    reason = "TRANSFER_FAILED"


class AddressesExpired(TransferFailed):
    """The object store refuses the signed addresses; fresh ones may help."""

    reason = "ADDRESSES_EXPIRED"


class FileChanged(FailedPrecondition):
    """A local file was changed while it was uploaded."""

    reason = "FILE_CHANGED"


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


async def described(paths: Mapping[str, Path]) -> list[FileLink]:
    """Return name, size and SHA-256 of local files by their names."""
    return [await asyncio.to_thread(describe, path, name=name) for name, path in paths.items()]


class Account:
    """How much of which file its owner was told of."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._bytes: dict[str, int] = {}

    def add(self, name: str, count: int) -> None:
        """Tell of more bytes, or take some back."""
        self._bytes[name] = self._bytes.get(name, 0) + count
        if count and self._progress is not None:
            self._progress(name, count)

    def put_right(self, name: str, count: int) -> None:
        """Tell of as many as make ``count`` in all."""
        self.add(name, count - self._bytes.get(name, 0))


async def upload_parts(
    paths: Mapping[str, Path], uploads: Sequence[UploadFile], account: Account
) -> None:
    """PUT the missing parts of files to their signed addresses, each again when it fails.

    Raises:
        AddressesExpired: new addresses must be asked for; what has arrived stays.
        TransferFailed: after several tries, or at once where another one would not help.
        FileChanged: a file is no longer what was announced.
    """
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:

        async def put(name: str, part: PartLink) -> None:
            told = _Told(name, account)
            headers = {"content-length": str(part.size_bytes)}

            async def attempt() -> None:
                body = chunks_of(paths[name], part, told.add)
                answer = await http.put(part.url, content=body, headers=headers)
                answer.raise_for_status()

            await _repeated(attempt, told, doing="uploaded")

        await each_part(uploads, put)


async def each_part(
    uploads: Sequence[UploadFile], send: Callable[[str, PartLink], Awaitable[None]]
) -> None:
    """Send missing parts, some at a time, in the order of the files; the first failure ends all."""
    left = iter([(one.file.name, part) for one in uploads for part in one.missing_parts])

    async def work() -> None:
        for name, part in left:
            await send(name, part)

    working = [asyncio.create_task(work()) for _ in range(PARALLEL_PARTS)]
    try:
        await asyncio.gather(*working)
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


async def chunks_of(
    path: Path, part: PartLink, tell: Callable[[int], None]
) -> AsyncIterator[bytes]:
    """Read one part of a file; ``tell`` is called when a chunk was taken.

    Raises:
        FileChanged: the file has become shorter.
    """
    left = part.size_bytes
    with path.open("rb") as file:
        file.seek(part.offset_bytes)
        while left:
            chunk = await asyncio.to_thread(file.read, min(left, CHUNK_BYTES))
            if not chunk:
                raise FileChanged(f"{path.name} was changed while it was uploaded", file=path.name)
            yield chunk
            left -= len(chunk)
            tell(len(chunk))


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
    account = Account(progress)
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        for link in links:
            part = folder / f".{link.name}.part"
            try:
                await _fetch(http, link, part, _Told(link.name, account))
                os.replace(part, folder / link.name)
            finally:
                part.unlink(missing_ok=True)


async def _fetch(http: httpx.AsyncClient, link: FileLink, part: Path, told: _Told) -> None:
    """GET a file; a try goes on where the failed one ended, if the store can do that."""
    digest = hashlib.sha256()

    async def get() -> None:
        nonlocal digest
        headers = {"range": f"bytes={told.bytes}-"} if told.bytes else {}
        async with http.stream("GET", link.url, headers=headers) as answer:
            answer.raise_for_status()
            # The status does not tell: rclone 1.75 answers 200 to a range as well.
            if not answer.headers.get("content-range", "").startswith(f"bytes {told.bytes}-"):
                told.take_back()
                digest = hashlib.sha256()
            with part.open("ab" if told.bytes else "wb") as file:
                async for chunk in answer.aiter_bytes(CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
                    told.add(len(chunk))

    await _repeated(get, told, doing="downloaded", goes_on=True)
    if digest.hexdigest() != link.sha256:
        raise FileCorrupt(f"{link.name} does not have the announced SHA-256", file=link.name)


class _Told:
    """How much of a file, or of a part of one, its owner was told of."""

    def __init__(self, name: str, account: Account) -> None:
        self.name = name
        self.bytes = 0
        self._account = account

    def add(self, count: int) -> None:
        """Tell of more bytes."""
        self.bytes += count
        self._account.add(self.name, count)

    def take_back(self) -> None:
        """Tell that everything begins again."""
        self.add(-self.bytes)


async def _repeated(
    work: Callable[[], Awaitable[T]], told: _Told, *, doing: str, goes_on: bool = False
) -> T:
    """Do ``work`` until it is done; each try begins anew unless it ``goes_on``."""
    tries = 0
    while True:
        try:
            return await work()
        except httpx.HTTPError as error:
            if not goes_on:
                told.take_back()
            tries += 1
            if tries == TRIES or not _may_help(error):
                kind = AddressesExpired if _is_refused(error) else TransferFailed
                raise kind(
                    f"{told.name} could not be {doing}: {_words(error)}", file=told.name
                ) from None
            await asyncio.sleep(2.0 ** (tries - 1))


def _may_help(error: httpx.HTTPError) -> bool:
    """Return whether another try can end better."""
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        return status >= 500 or status in (408, 425, 429)
    return True


def _is_refused(error: httpx.HTTPError) -> bool:
    # What is expired is told as 403 by some stores and as 400 by others.
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (400, 403)


def _words(error: httpx.HTTPError) -> str:
    # The text of an HTTP error holds the signed address.
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        over = "; signed addresses work for an hour, begin again" if _is_refused(error) else ""
        return f"the object store answered {status}{over}"
    return f"the object store does not answer ({type(error).__name__})"
