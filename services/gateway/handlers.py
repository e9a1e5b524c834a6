"""Use cases of the gateway: who calls, and which keys there are."""

import secrets
import time
from datetime import UTC, datetime

from lehr.ids import new_id
from lehr.postgres import Database
from lehr.rpc.auth import Caller
from services.gateway.domain.keys import (
    SECRET_PREFIX,
    SHOWN_CHARACTERS,
    ApiKey,
    KeyNotFound,
    KeyRefused,
    check_key_name,
    check_scope,
    digest,
    grantable,
    require,
    secret_of,
)
from services.gateway.storage import keys

CACHE_SIZE = 10_000


class KeyRing:
    """Resolves secrets to keys; remembers each for a moment so that a call costs no query."""

    def __init__(self, db: Database, *, cache_seconds: float) -> None:
        self._db = db
        self.cache_seconds = cache_seconds
        self._seen: dict[str, tuple[float, ApiKey]] = {}

    async def resolve(self, authorization: str | None) -> ApiKey:
        """Return the key of an ``authorization`` header.

        Raises:
            KeyRefused: no key, an unknown, expired or revoked one; the answer is the same for all.
        """
        found = digest(secret_of(authorization))
        fresh_until, key = self._seen.get(found, (0.0, None))
        if key is not None and time.monotonic() < fresh_until:
            return key
        async with self._db.connection() as conn:
            answer = await keys.by_secret(conn, found)
        if answer is None or not answer[0].works_at(answer[1]):
            self._seen.pop(found, None)
            raise KeyRefused(
                "this API key is unknown, expired or revoked; ask an admin for another"
            )
        if len(self._seen) >= CACHE_SIZE:
            self._seen.clear()
        self._seen[found] = (time.monotonic() + self.cache_seconds, answer[0])
        return answer[0]


async def ensure_first_key(db: Database, secret_sha256: str) -> None:
    """Store the key with which an installation begins; harmless when it is there."""
    first = ApiKey(
        key_id=new_id("key"),
        tenant="default",
        project="default",
        name="first key",
        role="operator",
        prefix=SECRET_PREFIX,
        create_time=datetime.now(UTC),
    )
    async with db.transaction() as conn:
        await keys.add(conn, first, secret_sha256=secret_sha256)


async def create_key(  # noqa: PLR0913 - the fields of one request.
    db: Database,
    *,
    caller: Caller,
    name: str,
    tenant: str,
    project: str,
    role: str,
    expire_time: datetime | None,
) -> tuple[ApiKey, str]:
    """Make a key and return it with its secret, which nobody can read again.

    Raises:
        RoleRequired: the caller is no admin, asks for more than they have, or names another tenant
            without being an operator.
        KeyFieldRefused: name, tenant or project is none.
    """
    require(caller.role, needed="admin")
    if tenant and tenant != caller.tenant:
        require(caller.role, needed="operator")
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    wanted = ApiKey(
        key_id=new_id("key"),
        tenant=check_scope(tenant, field="tenant") if tenant else caller.tenant,
        project=check_scope(project or "default", field="project"),
        name=check_key_name(name),
        role=grantable(role, by=caller.role),
        prefix=secret[:SHOWN_CHARACTERS],
        create_time=datetime.now(UTC),
        expire_time=expire_time,
    )
    async with db.transaction() as conn:
        stored = await keys.add(conn, wanted, secret_sha256=digest(secret))
    if stored is None:
        raise RuntimeError("two random secrets are equal")
    return stored, secret


async def list_keys(db: Database, *, caller: Caller) -> list[ApiKey]:
    """Return the tenant's keys, newest first.

    Raises:
        RoleRequired: the caller is no admin.
    """
    require(caller.role, needed="admin")
    async with db.connection() as conn:
        return await keys.of_tenant(conn, caller.tenant)


async def revoke_key(db: Database, *, caller: Caller, key_id: str) -> ApiKey:
    """End a key at once; twice is the same as once.

    Raises:
        RoleRequired: the caller is no admin, or the key has a higher role than theirs.
        KeyNotFound: the tenant has no such key.
    """
    require(caller.role, needed="admin")
    if "\0" in key_id:
        raise KeyNotFound("there is no key whose id holds a NUL")
    async with db.transaction() as conn:
        revoked = await keys.revoke(conn, caller.tenant, key_id)
        if revoked is None:
            raise KeyNotFound(f"there is no key {key_id}", key_id=key_id)
        # Raised inside of the transaction, which takes it back.
        require(caller.role, needed=revoked.role)
    return revoked
