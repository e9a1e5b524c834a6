"""Rows <-> ApiKey."""

from datetime import datetime
from pathlib import Path

import asyncpg

from lehr.postgres import Connection, Queries
from services.gateway.domain.keys import ApiKey

QUERIES = Queries.load(Path(__file__).with_name("queries.sql"))

_FIELDS = tuple(ApiKey.__dataclass_fields__)


async def add(conn: Connection, key: ApiKey, *, secret_sha256: str) -> ApiKey | None:
    """Store a key and return it with its time; None when its secret is there already."""
    row = await conn.fetchrow(
        QUERIES["add_key"],
        key.key_id,
        key.tenant,
        key.project,
        key.name,
        key.role,
        key.prefix,
        secret_sha256,
        key.expire_time,
    )
    return None if row is None else _key(row)


async def by_secret(conn: Connection, secret_sha256: str) -> tuple[ApiKey, datetime] | None:
    """Return the key of a secret and the database's time, or None."""
    row = await conn.fetchrow(QUERIES["key_by_secret"], secret_sha256)
    return None if row is None else (_key(row), row["now"])


async def of_tenant(conn: Connection, tenant: str) -> list[ApiKey]:
    """Return a tenant's keys, newest first."""
    return [_key(row) for row in await conn.fetch(QUERIES["keys_of"], tenant)]


async def revoke(conn: Connection, tenant: str, key_id: str) -> ApiKey | None:
    """End a key of the tenant and return it, or None when there is no such key."""
    row = await conn.fetchrow(QUERIES["revoke_key"], tenant, key_id)
    return None if row is None else _key(row)


def _key(row: asyncpg.Record) -> ApiKey:
    return ApiKey(**{name: row[name] for name in _FIELDS})
