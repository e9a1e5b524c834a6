"""The embedded S3 server: plain folders behind the S3 protocol."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import urllib3
from minio import Minio

from lehr.stack.nats import program
from lehr.stack.part import Part
from lehr.stack.ports import LOOPBACK

REGION = "us-east-1"

_HALF_WRITTEN = ".rclone_temp_"
_OPTIONS = (
    # Without these every first look at an object hashes all of it.
    "--etag-hash=",
    "--local-hashes=none",
    "--no-checksum",
    f"--config={os.devnull}",
    "--dir-perms=0700",
    "--file-perms=0600",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectServer:
    """One S3 server with one key pair, on loopback."""

    folder: Path
    """Holds a folder a bucket."""

    port: int
    """For clients."""

    access_key: str
    """Name of the key pair."""

    secret_key: str = field(repr=False)
    """Its secret half."""

    @property
    def endpoint(self) -> str:
        """Address for clients."""
        return f"http://{LOOPBACK}:{self.port}"

    def part(self, base: Mapping[str, str]) -> Part:
        """Return the process; ``base`` is the environment that every part gets."""
        return Part(
            name="s3",
            argv=(
                str(program("rclone")),
                "serve",
                "s3",
                f"--addr={LOOPBACK}:{self.port}",
                *_OPTIONS,
                str(self.folder),
            ),
            environment={
                **base,
                # A list of pairs in CSV, hence the quotes.
                "RCLONE_AUTH_KEY": f'"{self.access_key},{self.secret_key}"',
                "GOMEMLIMIT": "512MiB",
            },
            folder=self.folder,
            port=self.port,
            prepare=self._sweep,
            probe=self._probe,
        )

    def _sweep(self) -> None:
        """Delete what a killed server had half received; nobody can finish it."""
        for path in self.folder.rglob(f"{_HALF_WRITTEN}*"):
            path.unlink(missing_ok=True)

    async def _probe(self) -> None:
        await asyncio.to_thread(self._list_buckets)

    def _list_buckets(self) -> None:
        pool = urllib3.PoolManager(timeout=urllib3.Timeout(3.0), retries=False)
        try:
            client = Minio(
                f"{LOOPBACK}:{self.port}",
                access_key=self.access_key,
                secret_key=self.secret_key,
                secure=False,
                region=REGION,
                http_client=pool,
            )
            client.list_buckets()
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(f"no answer: {error}") from error
        finally:
            pool.clear()
