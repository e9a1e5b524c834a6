"""The object store behind one small class, so that its client can be replaced.

Stores differ in what they promise: conditional writes, checksums, metadata and ETags may all be
ignored. Only this is relied on: a whole object appears at once, under a key that is never reused.
"""

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import urllib3
from minio import Minio
from minio.deleteobjects import DeleteObject

from lehr.logs import metrics
from lehr.objects.failures import ObjectNotFound, ObjectStoreUnavailable, typed_errors
from lehr.objects.keys import check_key

CHUNK_BYTES = 1 << 20
PART_BYTES = 16 << 20
"""Measured best for uploads of a file, three parts at a time."""

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

    async def put_file(self, key: str, path: Path) -> None:
        """Upload a file, large ones in parts; nothing is visible before all of it is."""
        check_key(key)

        def put() -> None:
            self._client.fput_object(
                self.bucket,
                key,
                str(path),
                part_size=PART_BYTES,
                num_parallel_uploads=_PARALLEL_PARTS,
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


def _digest(chunks: Iterable[bytes], *, copy_to: BinaryIO | None = None) -> Digest:
    hasher, size_bytes = hashlib.sha256(), 0
    for chunk in chunks:
        hasher.update(chunk)
        size_bytes += len(chunk)
        if copy_to is not None:
            copy_to.write(chunk)
    return Digest(hasher.hexdigest(), size_bytes)
