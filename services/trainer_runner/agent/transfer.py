"""Moves files between this disk and signed addresses: streamed, bounded, verified."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx

from lehr.errors import InvalidArgument, NotFound, Unavailable
from lehr.logs import metrics
from services.trainer_runner.agent.peers import FileLink

CHUNK_BYTES = 1024 * 1024

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")
_TIMEOUT = httpx.Timeout(60.0, connect=5.0, pool=60.0)


class TransferFailed(Unavailable):
    """The object store did not take or give the bytes; a later try may work."""

    reason = "TRANSFER_FAILED"


class BytesDiffer(TransferFailed):
    """What arrived is not what was promised."""

    reason = "BYTES_DIFFER"


class FileMissing(NotFound):
    """The object store answers, and does not have the file; waiting brings it no nearer."""

    reason = "FILE_MISSING"


class FolderRefused(InvalidArgument):
    """A trainer left something that is not a plain folder of plain files."""

    reason = "FOLDER_REFUSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile:
    """One file of a folder, measured."""

    path: Path
    link: FileLink


class Transfer:
    """One HTTP client for all runs; addresses never appear in a message."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False)

    async def close(self) -> None:
        """Close connections."""
        await self._client.aclose()

    async def download(self, link: FileLink, folder: Path, *, name: str | None = None) -> Path:
        """Write a file into ``folder`` and bring it to the disk; return its path.

        Raises:
            TransferFailed: no answer, or not the promised bytes.
            FileMissing: the store does not have it.
            InvalidArgument: the name could leave the folder.
        """
        path = folder / plain_name(name or link.name)
        try:
            size, sha256 = await self._write(link, path)
        except OSError as problem:
            raise TransferFailed(
                f"writing {link.name} to the node's disk failed: {problem.strerror}",
                name=link.name,
            ) from None
        metrics.add("object_bytes", size, direction="in")
        if size != link.size_bytes or sha256 != link.sha256:
            path.unlink()
            raise BytesDiffer(
                f"{link.name} is not what its listing says: {size} of {link.size_bytes} bytes",
                name=link.name,
            )
        return path

    async def _write(self, link: FileLink, path: Path) -> tuple[int, str]:
        digest, size = hashlib.sha256(), 0
        with await asyncio.to_thread(path.open, "wb") as file:
            async for chunk in self._chunks(link):
                size += len(chunk)
                if size > link.size_bytes:
                    break
                await asyncio.to_thread(_take, file, digest, chunk)
            await asyncio.to_thread(_sync, file)
        return size, digest.hexdigest()

    async def upload(self, local: LocalFile, url: str) -> None:
        """PUT a file.

        Raises:
            TransferFailed: the store did not take it.
        """
        headers = {"Content-Length": str(local.link.size_bytes)}
        try:
            answer = await self._client.put(url, content=_content(local), headers=headers)
        except (httpx.HTTPError, OSError) as problem:
            raise _failed("storing", local.link.name, type(problem).__name__) from None
        if answer.status_code not in (200, 201, 204):
            raise _failed("storing", local.link.name, f"status {answer.status_code}")
        metrics.add("object_bytes", local.link.size_bytes, direction="out")

    async def _chunks(self, link: FileLink) -> AsyncIterator[bytes]:
        try:
            async with self._client.stream("GET", link.url) as answer:
                if answer.status_code in (404, 410):
                    raise FileMissing(
                        f"{link.name} is not in the object store any more", name=link.name
                    )
                if answer.status_code != 200:
                    raise _failed("reading", link.name, f"status {answer.status_code}")
                async for chunk in answer.aiter_bytes(CHUNK_BYTES):
                    yield chunk
        except httpx.HTTPError as problem:
            raise _failed("reading", link.name, type(problem).__name__) from None


def plain_name(name: str) -> str:
    """Return a name that stays inside its folder.

    Raises:
        InvalidArgument: it does not.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"file name {name[:80]!r} must be 1 to 255 letters, digits, dots, dashes, underscores",
            reason="FILE_NAME_REFUSED",
        )
    return name


def measure_folder(folder: Path) -> list[LocalFile]:
    """Hash the files of a folder that a trainer wrote, following no link.

    Raises:
        FolderRefused: it holds something else than plain files.
    """
    found: list[LocalFile] = []
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise FolderRefused(f"{folder.name} is no folder")
        for path in sorted(folder.iterdir()):
            plain_name(path.name)
            if not stat.S_ISREG(path.lstat().st_mode):
                raise FolderRefused(f"{folder.name} holds {path.name}, which is no plain file")
            found.append(_measure(path))
    except OSError as problem:
        raise FolderRefused(f"{folder.name} cannot be read: {problem.strerror}") from None
    if not found:
        raise FolderRefused(f"{folder.name} is empty")
    return found


def _measure(path: Path) -> LocalFile:
    digest, size = hashlib.sha256(), 0
    with _opened(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    link = FileLink(name=path.name, size_bytes=size, sha256=digest.hexdigest())
    return LocalFile(path=path, link=link)


async def _content(local: LocalFile) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(_opened, local.path) as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk


def _opened(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")


def _take(file: BinaryIO, digest: hashlib._Hash, chunk: bytes) -> None:
    file.write(chunk)
    digest.update(chunk)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _failed(doing: str, name: str, what: str) -> TransferFailed:
    return TransferFailed(
        f"{doing} {name} failed at the object store: {what}", name=name, what=what
    )
