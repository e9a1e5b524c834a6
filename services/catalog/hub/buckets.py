"""Objects below a prefix of an S3 server that somebody else runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3
from minio import Minio

from lehr.egress import Guard, guarded_pool
from services.catalog.domain.imports import (
    REMOTE_FILE_COUNT_MAX,
    ImportRefused,
    RemoteFile,
    SourceCorrupt,
)
from services.catalog.hub.downloads import digests_of

_CHUNK_BYTES = 1 << 20
_TIMEOUT = urllib3.Timeout(connect=10, read=30)


def client(source: dict[str, str], secret: dict[str, str], guard: Guard) -> Minio:
    """Return a client of the server that ``source`` names.

    Raises:
        EgressRefused: the server is not public.
    """
    guard.check_url(source["endpoint"])
    parts = urlsplit(source["endpoint"])
    return Minio(
        parts.netloc,
        access_key=secret.get("access_key"),
        secret_key=secret.get("secret_key"),
        secure=parts.scheme == "https",
        # Without it, the client would ask the server first.
        region=source["region"] or "us-east-1",
        http_client=guarded_pool(
            guard, timeout=_TIMEOUT, retries=urllib3.Retry(total=2, backoff_factor=0.5)
        ),
    )


def listed(server: Minio, source: dict[str, str]) -> list[RemoteFile]:
    """Return the objects below the prefix, markers of folders left out.

    Raises:
        ImportRefused: more than are looked through.
    """
    found: list[RemoteFile] = []
    for entry in server.list_objects(source["bucket"], prefix=source["prefix"], recursive=True):
        if entry.is_dir or entry.object_name.endswith("/"):
            continue
        if len(found) == REMOTE_FILE_COUNT_MAX:
            raise ImportRefused("s3.prefix", "holds more objects than are looked through")
        found.append(
            RemoteFile(
                path=entry.object_name, size_bytes=entry.size, digest=f"etag:{entry.etag or ''}"
            )
        )
    return found


def fetch(
    server: Minio, bucket: str, file: RemoteFile, folder: Path, *, tell: Callable[[int], None]
) -> tuple[Path, str]:
    """Return where an object lies and its SHA-256.

    Raises:
        SourceCorrupt: it was changed since it was listed, or ends early.
    """
    path = folder / file.name
    answer: Any = server.get_object(bucket, file.path)
    try:
        if f"etag:{answer.headers.get('etag', '').strip(chr(34))}" != file.digest:
            raise SourceCorrupt(f"{file.path} was changed since it was listed; import it again")
        with path.open("wb") as target:
            # One byte more than listed is enough to know.
            while target.tell() <= file.size_bytes and (chunk := answer.read(_CHUNK_BYTES)):
                target.write(chunk)
                tell(len(chunk))
    finally:
        answer.close()
        answer.release_conn()
    if path.stat().st_size != file.size_bytes:
        raise SourceCorrupt(f"{file.path} does not have the listed size; import it again")
    return path, digests_of(path)[0].removeprefix("sha256:")
