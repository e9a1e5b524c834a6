"""A program of its own that makes servers ready for the services: tables, streams, bucket.

It runs apart from the supervisor, which would otherwise keep all these libraries in memory. The
administrator's address and the passwords come on standard input, the rest from ``LEHR_`` variables.
"""

import asyncio
import json
import sys
from contextlib import suppress
from urllib.parse import urlsplit

import asyncpg
import nats

from lehr.errors import PlatformError
from lehr.events import connection, streams
from lehr.logs import configure
from lehr.objects import ObjectStore
from lehr.postgres import bootstrap as bootstrap_postgres
from lehr.settings import PlatformSettings

_CONNECT_SECONDS = 10.0


async def make_database(admin_url: str) -> None:
    """Create the database that an administrator's address names, if it is missing."""
    url = urlsplit(admin_url)
    name = url.path.removeprefix("/")
    admin = await asyncpg.connect(url._replace(path="/postgres").geturl(), timeout=_CONNECT_SECONDS)
    try:
        with suppress(asyncpg.DuplicateDatabaseError):
            await admin.execute(f'CREATE DATABASE "{name}"')
    finally:
        await admin.close()


async def apply_streams(settings: PlatformSettings) -> None:
    """Make the streams and durables of NATS as they are declared."""
    chosen = connection.options(settings, name="bootstrap") | {"allow_reconnect": False}
    client = await asyncio.wait_for(nats.connect(**chosen), timeout=_CONNECT_SECONDS)
    try:
        await streams.apply(client, streams.declared())
    finally:
        await client.close()


async def make_bucket(settings: PlatformSettings) -> None:
    """Create the bucket if it is missing."""
    access_key, secret_key = settings.s3_access_key, settings.s3_secret_key
    if access_key is None or secret_key is None:
        raise ValueError("LEHR_S3_ACCESS_KEY and LEHR_S3_SECRET_KEY must be set")
    store = ObjectStore(
        settings.s3_endpoint,
        access_key.get_secret_value(),
        secret_key.get_secret_value(),
        settings.s3_bucket,
        settings.s3_region,
    )
    await store.ensure_bucket()


async def make_all(
    admin_url: str, passwords: dict[str, str], *, settings: PlatformSettings, is_ours: bool
) -> None:
    """Make everything; may be called again, and does nothing where nothing is missing."""

    async def make_tables() -> None:
        if is_ours:
            await make_database(admin_url)
        await bootstrap_postgres(admin_url, passwords=passwords, test_hooks=settings.test_hooks)

    await asyncio.gather(make_tables(), apply_streams(settings), make_bucket(settings))


def main() -> int:
    """Run with the order of the supervisor; tell failures on standard error."""
    configure("bootstrap", "console")
    order = json.load(sys.stdin)
    try:
        asyncio.run(
            make_all(
                order["admin_url"],
                order["passwords"],
                settings=PlatformSettings(),
                is_ours=order["is_ours"],
            )
        )
    except (
        PlatformError,
        OSError,
        TimeoutError,
        nats.errors.Error,
        asyncpg.PostgresError,
    ) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
