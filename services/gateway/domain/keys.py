"""API keys: how a secret looks, how it is kept, who may make which."""

import hashlib
from dataclasses import dataclass
from datetime import datetime

from lehr.errors import FieldViolation, InvalidArgument, NotFound, PermissionDenied, Unauthenticated
from lehr.ids import is_scope

SECRET_PREFIX = "lehr_sk_"  # noqa: S105 - how every secret begins, not one.
SHOWN_CHARACTERS = len(SECRET_PREFIX) + 4

NAME_CHARACTERS_MAX = 100

#: Roles by rank; each may do what those before it may.
ROLES = ("member", "admin", "operator")


class KeyRefused(Unauthenticated):
    """The call carries no API key that works."""

    reason = "API_KEY_REFUSED"


class RoleRequired(PermissionDenied):
    """The key's role is not enough."""

    reason = "ROLE_REQUIRED"


class KeyNotFound(NotFound):
    """The tenant has no such key."""

    reason = "KEY_NOT_FOUND"


class RoleUnknown(InvalidArgument):
    """There is no such role."""

    reason = "ROLE_UNKNOWN"


class KeyFieldRefused(InvalidArgument):
    """A key cannot be made so."""

    reason = "KEY_FIELD_REFUSED"

    def __init__(self, field: str, description: str) -> None:
        super().__init__(
            f"{field} {description}",
            fields=[FieldViolation(field=field, description=description)],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key without its secret."""

    key_id: str
    tenant: str
    project: str
    name: str
    role: str
    prefix: str
    """First characters of the secret, so that people recognise it."""
    create_time: datetime
    expire_time: datetime | None = None
    revoke_time: datetime | None = None

    def works_at(self, now: datetime) -> bool:
        """Return whether the key may be used."""
        expired = self.expire_time is not None and self.expire_time <= now
        return self.revoke_time is None and not expired


def digest(secret: str) -> str:
    """Return what is stored of a secret: SHA-256 in hex; it is random, so it needs no salt."""
    return hashlib.sha256(secret.encode()).hexdigest()


def secret_of(authorization: str | None) -> str:
    """Take the secret out of an ``authorization`` header.

    Raises:
        KeyRefused: there is none.
    """
    scheme, _, secret = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise KeyRefused("send an API key as `authorization: Bearer lehr_sk_...`")
    return secret.strip()


def require(role: str, *, needed: str) -> None:
    """Refuse a role of lower rank than ``needed``.

    Raises:
        RoleRequired: it is not enough.
    """
    if role not in ROLES or ROLES.index(role) < ROLES.index(needed):
        raise RoleRequired(
            f"this needs a key with the role {needed}; yours is {role}", needed=needed
        )


def check_scope(value: str, *, field: str) -> str:
    """Return the name of a tenant or project.

    Raises:
        KeyFieldRefused: it is none.
    """
    if not is_scope(value):
        raise KeyFieldRefused(
            field,
            f"is {value[:80]!r}; use 1 to 63 lower-case letters, digits, dash and underscore,"
            " a letter or digit first",
        )
    return value


def check_key_name(name: str) -> str:
    """Return what a key is for.

    Raises:
        KeyFieldRefused: it is empty, too long or not printable.
    """
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise KeyFieldRefused(
            "name",
            f"is {name[:80]!r}; say in 1 to {NAME_CHARACTERS_MAX} printable characters what it"
            " is for",
        )
    return name


def grantable(role: str, *, by: str) -> str:
    """Return the role a new key gets; nobody grants more than they have.

    Raises:
        RoleUnknown: there is no such role.
        RoleRequired: it ranks above ``by``.
    """
    wanted = role or "member"
    if wanted not in ROLES:
        raise RoleUnknown(f"there is no role {wanted!r}; use {', '.join(ROLES)}", role=wanted)
    require(by, needed=wanted)
    return wanted
