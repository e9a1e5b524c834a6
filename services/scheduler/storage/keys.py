"""Rows of request keys: one effect a key, whatever is repeated or lost."""

from __future__ import annotations

from dataclasses import dataclass

from lehr.postgres import Connection
from services.scheduler.domain.errors import IdempotencyKeyReused
from services.scheduler.storage.sql import SQL


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKey:
    """A key as a caller chose it, and what it was chosen for."""

    tenant: str
    scope: str
    """``create``, or the id of the job that is resumed."""
    request_id: str
    fingerprint: str
    """SHA-256 of the request in canonical form."""


async def job_id_of(conn: Connection, key: RequestKey) -> str | None:
    """Return the job that the key has made already; None when it has not.

    Raises:
        IdempotencyKeyReused: it belongs to another request that was carried out.
    """
    row = await conn.fetchrow(SQL["key_of"], key.tenant, key.scope, key.request_id)
    if row is None or row["job_id"] is None:
        return None
    if row["fingerprint"] != key.fingerprint:
        raise IdempotencyKeyReused(key.request_id)
    job_id: str = row["job_id"]
    return job_id


async def reserve(conn: Connection, key: RequestKey) -> str | None:
    """Take the key before anything is spent; return its job if an equal request has made one.

    Raises:
        IdempotencyKeyReused: it belongs to another request.
    """
    taken = await conn.fetchval(
        SQL["reserve_key"], key.tenant, key.scope, key.request_id, key.fingerprint
    )
    if taken is not None:
        return None
    job_id = await job_id_of(conn, key)
    if job_id is None:
        raise IdempotencyKeyReused(key.request_id)
    return job_id


async def complete(conn: Connection, key: RequestKey, job_id: str) -> bool:
    """Bind the key to its job in the transaction of the effect; False if an equal one was faster.

    Raises:
        IdempotencyKeyReused: it belongs to another request.
    """
    bound = await conn.fetchval(
        SQL["complete_key"], key.tenant, key.scope, key.request_id, key.fingerprint, job_id
    )
    if bound is not None:
        return True
    if await job_id_of(conn, key) is None:
        raise IdempotencyKeyReused(key.request_id)
    return False


async def release(conn: Connection, key: RequestKey) -> None:
    """Give up the key of a request that was refused."""
    await conn.execute(SQL["release_key"], key.tenant, key.scope, key.request_id, key.fingerprint)
