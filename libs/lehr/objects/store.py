"""The object store behind one small class, so that its client can be replaced.

Stores differ in what they promise: conditional writes, checksums, metadata and ETags may all be
ignored. Only this is relied on: a whole object appears at once, under a key that is never reused.
"""

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import urllib3
from minio import Minio
from minio.deleteobjects import DeleteObject

from lehr.logs import metrics
from lehr.objects.failures import (
    ObjectDiffers,
    ObjectNotFound,
    ObjectStoreUnavailable,
    typed_errors,
)
from lehr.objects.keys import check_key

CHUNK_BYTES = 1 << 20
PART_BYTES = 16 << 20
"""Measured best for uploads of a file, three parts at a time."""

SMALL_PART_BYTES = 8 << 20
"""Where memory counts; enough for 80 GB, as an object has at most 10,000 parts."""

_PARALLEL_PARTS = 3
_CONNECT_SECONDS = 5
_READ_SECONDS = 60

T = TypeVar("T")


class Digest(NamedTuple):
    """What was read: proof of a whole and right object."""

    sha256: str
    """Hex, lower case."""
    size_bytes: int


class StoredObject(NamedTuple):
    """One entry of a listing."""

    key: str
    size_bytes: int
    modify_time: datetime


class ObjectStore:
    """One bucket of an S3 server; calls run in threads and do not block the loop.

    Every call raises ObjectStoreUnavailable where the server does not do it, and InvalidArgument
    for a key that not every server takes.
    """

    def __init__(
        self,
        endpoint: str,
        access_key: str,
        secret_key: str,
        bucket: str,
        region: str = "us-east-1",
    ) -> None:
        """Build the client without talking to the server; ``endpoint`` is an http(s) URL."""
        parts = urlsplit(endpoint)
        self.bucket = bucket
        self._client = Minio(
            parts.netloc,
            access_key=access_key,
            secret_key=secret_key,
            secure=parts.scheme == "https",
            # Without it, every presigned URL would begin with a question to the server.
            region=region,
            http_client=urllib3.PoolManager(
                timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS),
                maxsize=16,
                retries=urllib3.Retry(
                    total=3, backoff_factor=0.2, status_forcelist=[500, 502, 503, 504]
                ),
            ),
        )

    async def ensure_bucket(self) -> None:
        """Make the bucket if it is not there; may be called by several at once."""

        def make() -> None:
            if self._client.bucket_exists(self.bucket):
                return
            try:
                with typed_errors("make bucket", self.bucket):
                    self._client.make_bucket(self.bucket)
            except ObjectStoreUnavailable:
                # Someone else may have made it since, which servers tell in different ways.
                if not self._client.bucket_exists(self.bucket):
                    raise

        await self._call("make bucket", self.bucket, make)

    async def put_file(self, key: str, path: Path, *, is_frugal: bool = False) -> None:
        """Upload a file, large ones in parts; nothing is visible before all of it is.

        A frugal upload takes 8 MiB of memory, any other up to 112.
        """
        check_key(key)

        def put() -> None:
            self._client.fput_object(
                self.bucket,
                key,
                str(path),
                part_size=SMALL_PART_BYTES if is_frugal else PART_BYTES,
                num_parallel_uploads=1 if is_frugal else _PARALLEL_PARTS,
            )
            metrics.add("object_bytes", path.stat().st_size, direction="up")

        await self._call("store", key, put)

    async def put_bytes(self, key: str, content: bytes) -> None:
        """Upload a small object."""
        check_key(key)

        def put() -> None:
            self._client.put_object(self.bucket, key, io.BytesIO(content), len(content))
            metrics.add("object_bytes", len(content), direction="up")

        await self._call("store", key, put)

    async def put_joined(
        self,
        key: str,
        sources: Sequence[str],
        *,
        expected: Digest,
        copy_to: Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Join objects to a new one, in bounded memory, and to a local file where one is named.

        The new object appears only when its bytes are those that were expected; ``progress`` is
        told how many more went through, in another thread.

        Raises:
            ObjectNotFound: a source is not there.
            ObjectDiffers: the sources together are something else.
        """
        for one in (key, *sources):
            check_key(one)

        def join() -> None:
            with ExitStack() as cleanup:
                copy = None if copy_to is None else cleanup.enter_context(copy_to.open("wb"))
                chunks = cleanup.enter_context(closing(self._joined(sources, copy, progress)))
                self._client.put_object(
                    self.bucket,
                    key,
                    _Checked(chunks, key, expected),
                    expected.size_bytes,
                    # The client holds twice as many parts as it sends, and one more, in memory.
                    part_size=SMALL_PART_BYTES,
                    num_parallel_uploads=_PARALLEL_PARTS,
                )
            metrics.add("object_bytes", expected.size_bytes, direction="up")

        await self._call("store", key, join)

    async def get_bytes(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return a small object, or a part of a large one; a part may end early.

        Raises:
            ObjectNotFound: nothing is stored there.
        """
        check_key(key)
        if length == 0:
            return b""
        return await self._call(
            "read", key, lambda: b"".join(self._chunks(key, offset=offset, length=length))
        )

    async def get_file(self, key: str, path: Path) -> Digest:
        """Download to ``path``, which appears whole or not at all, and say what was read.

        Raises:
            ObjectNotFound: nothing is stored there.
        """
        check_key(key)

        def get() -> Digest:
            partial = path.with_name(f"{path.name}.part")
            try:
                with partial.open("wb") as file:
                    digest = _digest(self._chunks(key), copy_to=file)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
            return digest

        return await self._call("read", key, get)

    async def stream(self, key: str) -> AsyncGenerator[bytes, None]:
        """Yield the object in chunks of up to 1 MiB, reading only as fast as they are taken.

        Raises:
            ObjectNotFound: nothing is stored there.
        """
        check_key(key)
        chunks = self._chunks(key)
        try:
            while chunk := await self._call("read", key, lambda: next(chunks, b"")):
                yield chunk
        finally:
            # A cancelled read still runs in its thread; the response is freed when that ends.
            with suppress(ValueError):
                chunks.close()

    async def sha256(self, key: str) -> Digest:
        """Read the whole object and return its digest and size.

        Raises:
            ObjectNotFound: nothing is stored there.
        """
        check_key(key)
        return await self._call("read", key, lambda: _digest(self._chunks(key)))

    async def stat(self, key: str) -> int | None:
        """Return the size in bytes, or None where nothing is stored."""
        check_key(key)

        def size() -> int | None:
            found: int | None = self._client.stat_object(self.bucket, key).size
            return found

        try:
            return await self._call("look at", key, size)
        except ObjectNotFound:
            return None

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are gone already are no error."""
        doomed = [check_key(key) for key in keys]

        def remove() -> None:
            targets = [DeleteObject(key) for key in doomed]
            refused = [
                error.name
                for error in self._client.remove_objects(self.bucket, targets)
                if error.code != "NoSuchKey"
            ]
            if refused:
                raise ObjectStoreUnavailable(
                    f"the object store kept {len(refused)} of {len(doomed)} objects, "
                    f"the first is {refused[0]}; ask again in a moment",
                    key=refused[0],
                    kept_count=len(refused),
                )

        if doomed:
            await self._call("delete", doomed[0], remove)

    async def list(self, prefix: str) -> tuple[StoredObject, ...]:
        """Return every object whose key begins with ``prefix``, in the order of their keys."""

        def entries() -> tuple[StoredObject, ...]:
            found = self._client.list_objects(self.bucket, prefix=prefix, recursive=True)
            return tuple(
                StoredObject(entry.object_name, entry.size, entry.last_modified) for entry in found
            )

        return await self._call("list", prefix, entries)

    def presign_put(self, key: str, expires: timedelta) -> str:
        """Return a URL that uploads this one object; a secret until it expires."""
        check_key(key)
        url: str = self._client.presigned_put_object(self.bucket, key, expires=expires)
        return url

    def presign_get(self, key: str, expires: timedelta, filename: str | None = None) -> str:
        """Return a URL that downloads this one object, as ``filename`` where servers heed it."""
        check_key(key)
        headers = None
        if filename is not None:
            disposition = f"attachment; filename*=UTF-8''{quote(filename, safe='')}"
            headers = {"response-content-disposition": disposition}
        url: str = self._client.presigned_get_object(
            self.bucket, key, expires=expires, response_headers=headers
        )
        return url

    def _joined(
        self,
        sources: Sequence[str],
        copy: BinaryIO | None,
        progress: Callable[[int], None] | None,
    ) -> Generator[bytes, None, None]:
        for source in sources:
            with typed_errors("read", source), closing(self._chunks(source)) as chunks:
                for chunk in chunks:
                    if copy is not None:
                        copy.write(chunk)
                    if progress is not None:
                        progress(len(chunk))
                    yield chunk

    async def _call(self, doing: str, key: str, work: Callable[[], T]) -> T:
        def typed() -> T:
            with typed_errors(doing, key):
                return work()

        return await asyncio.to_thread(typed)

    def _chunks(
        self, key: str, *, offset: int = 0, length: int | None = None
    ) -> Generator[bytes, None, None]:
        """Read an object piece by piece; a connection that ends early is an error, not an end."""
        # The client reads a length of 0 as everything.
        response = self._client.get_object(self.bucket, key, offset=offset, length=length or 0)
        try:
            while chunk := response.read(CHUNK_BYTES):
                metrics.add("object_bytes", len(chunk), direction="down")
                yield chunk
        finally:
            response.close()
            response.release_conn()


class _Checked:
    """A stream that gives its last bytes only if all of them are those that were expected."""

    def __init__(self, chunks: Iterable[bytes], key: str, expected: Digest) -> None:
        self._chunks = iter(chunks)
        self._key = key
        self._expected = expected
        self._hasher = hashlib.sha256()
        self._held = b""
        self._given_bytes = 0

    def read(self, size: int) -> bytes:
        """Return exactly so many bytes, as the client would add shorter ones up very slowly."""
        taken, have = [self._held], len(self._held)
        while have < size and (chunk := next(self._chunks, b"")):
            taken.append(chunk)
            have += len(chunk)
        kept = len(taken[-1]) - max(0, have - size)
        taken[-1], self._held = taken[-1][:kept], taken[-1][kept:]
        given = b"".join(taken)
        self._hasher.update(given)
        self._given_bytes += len(given)
        if self._given_bytes >= self._expected.size_bytes or len(given) < size:
            self._check()
        return given

    def _check(self) -> None:
        more = self._held or next(self._chunks, b"")
        size_bytes = self._given_bytes + len(more)
        if size_bytes != self._expected.size_bytes:
            wrong = "is longer than" if more else f"has {size_bytes} bytes instead of"
            raise ObjectDiffers(self._key, f"{wrong} {self._expected.size_bytes}")
        if self._hasher.hexdigest() != self._expected.sha256:
            raise ObjectDiffers(self._key, "does not have the announced SHA-256")


def _digest(chunks: Iterable[bytes], *, copy_to: BinaryIO | None = None) -> Digest:
    hasher, size_bytes = hashlib.sha256(), 0
    for chunk in chunks:
        hasher.update(chunk)
        size_bytes += len(chunk)
        if copy_to is not None:
            copy_to.write(chunk)
    return Digest(hasher.hexdigest(), size_bytes)
