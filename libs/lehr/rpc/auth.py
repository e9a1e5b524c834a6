"""Who calls, and for whom: short tokens that services sign for each other."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic, time
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from lehr.errors import PermissionDenied, Unauthenticated

#: Metadata key of the token.
TOKEN_KEY = "x-lehr-context"  # noqa: S105 - the name of a header.

ALGORITHM = "EdDSA"

TOKEN_SECONDS = 60
"""How long a token is good for after it was signed."""

CACHE_SECONDS = 30
"""How long a signed token is used again; it then still has half of its life."""

LEEWAY_SECONDS = 5
"""How far the clocks of two machines may differ."""

CACHE_SIZE = 4096

_STRINGS = ("iss", "sub", "tenant", "project", "role")

_SEE_ALL_PROJECTS = frozenset({"admin", "operator"})

#: Methods that a servicer's policy does not name may be called by the gateway alone.
GATEWAY_ONLY = frozenset({"gateway"})


class TokenRefused(Unauthenticated):
    """The call carries no token, or one that does not convince."""

    reason = "TOKEN_REFUSED"


class CallerForbidden(PermissionDenied):
    """The calling service is not one that may call this method."""

    reason = "CALLER_FORBIDDEN"


class TenantRequired(PermissionDenied):
    """The method works on a tenant's things, and the call names no tenant."""

    reason = "TENANT_REQUIRED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who is calling, as proven by a signed token."""

    service: str
    """The service that signed the token."""
    principal: str
    """The user, API key or service on whose behalf it acts."""
    tenant: str
    """The tenant; "" is the platform itself."""
    project: str
    role: str

    @property
    def only_project(self) -> str | None:
        """The project outside of which it sees nothing in overviews of the tenant; None for all."""
        return None if self.role in _SEE_ALL_PROJECTS else self.project


@dataclass(frozen=True, slots=True, kw_only=True)
class ActingFor:
    """On whose behalf the next calls are made."""

    principal: str
    tenant: str
    project: str
    role: str


_CALLER: ContextVar[Caller | None] = ContextVar("lehr_caller", default=None)
_ACTING: ContextVar[ActingFor | None] = ContextVar("lehr_acting_for", default=None)


def caller() -> Caller:
    """Return who made the call that is being served.

    Raises:
        Unauthenticated: no call is being served.
    """
    found = _CALLER.get()
    if found is None:
        raise TokenRefused("nobody is calling: this code runs outside of an authenticated call")
    return found


def tenant_of_caller() -> str:
    """Return the tenant of the call that is being served.

    Raises:
        PermissionDenied: the call was made for the platform, not for a tenant.
    """
    found = caller()
    if not found.tenant:
        raise TenantRequired(
            f"{found.service} called for no tenant, and this method works on a tenant's things",
            service=found.service,
        )
    return found.tenant


def set_caller(found: Caller | None) -> None:
    """Remember the caller for the rest of this task; the server interceptor and tests call it."""
    _CALLER.set(found)


@contextmanager
def acting_for(
    tenant: str, project: str = "default", *, principal: str | None = None, role: str = "service"
) -> Iterator[None]:
    """Make the calls inside the block on behalf of a tenant; "" is the platform.

    ``principal`` is, unless given, whoever makes the call that is being served, or this service.
    """
    if principal is None:
        found = _CALLER.get()
        principal = found.principal if found else ""
    token = _ACTING.set(ActingFor(principal=principal, tenant=tenant, project=project, role=role))
    try:
        yield
    finally:
        _ACTING.reset(token)


def outgoing() -> ActingFor:
    """Return on whose behalf a call would be made now: acting_for, else the caller's, else none."""
    if acting := _ACTING.get():
        return acting
    if found := _CALLER.get():
        return ActingFor(
            principal=found.principal, tenant=found.tenant, project=found.project, role=found.role
        )
    return ActingFor(principal="", tenant="", project="default", role="service")


class Identity:
    """A service's own key, with which it signs who it is and for whom it acts."""

    def __init__(self, service: str, key_pem: str) -> None:
        """Read the Ed25519 private key, PEM.

        Raises:
            ValueError: it is none.
        """
        self.service = service
        try:
            key = load_pem_private_key(key_pem.encode(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            # Without the cause, which could quote the key.
            raise ValueError(
                f"the identity key of {service} must be an Ed25519 private key in PEM"
            ) from None
        self._key = key
        self._signed: dict[ActingFor, tuple[float, str]] = {}

    def token(self, acting: ActingFor) -> str:
        """Return a token that is good for at least 30 s more; signing again is rare."""
        now = monotonic()
        fresh_until, token = self._signed.get(acting, (0.0, ""))
        if now >= fresh_until:
            if len(self._signed) >= CACHE_SIZE:
                self._signed.clear()
            token = self._sign(acting)
            self._signed[acting] = (now + CACHE_SECONDS, token)
        return token

    def _sign(self, acting: ActingFor) -> str:
        claims = {
            "iss": self.service,
            "sub": acting.principal or self.service,
            "tenant": acting.tenant,
            "project": acting.project,
            "role": acting.role,
            "exp": int(time()) + TOKEN_SECONDS,
        }
        return jwt.encode(claims, self._key, algorithm=ALGORITHM)


class Verifier:
    """The public keys of the services that are believed."""

    def __init__(self, trusted_keys: Mapping[str, str]) -> None:
        """Read the Ed25519 public keys, PEM by service name.

        Raises:
            ValueError: one of them is none.
        """
        self._keys = {name: _public_key(name, pem) for name, pem in trusted_keys.items()}

    def verify(self, token: str | None) -> Caller:
        """Return who signed the token and for whom.

        Raises:
            TokenRefused: missing, expired, altered, or signed by somebody whom we do not know.
        """
        if not token:
            raise TokenRefused(f"the call carries no {TOKEN_KEY}")
        try:
            issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
            key = self._keys.get(issuer) if isinstance(issuer, str) else None
            if key is None:
                raise TokenRefused(f"the token is signed by {issuer!r}, who is not trusted here")
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[ALGORITHM],
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise TokenRefused("the token has expired; sign a new one") from None
        except jwt.InvalidTokenError:
            raise TokenRefused("the token is malformed or not signed by its issuer") from None
        if not all(isinstance(claims.get(name), str) for name in _STRINGS):
            raise TokenRefused(f"the token must carry {', '.join(_STRINGS)} as text")
        return Caller(
            service=claims["iss"],
            principal=claims["sub"],
            tenant=claims["tenant"],
            project=claims["project"],
            role=claims["role"],
        )


def check_policy(found: Caller, method: str, policy: Mapping[str, frozenset[str]]) -> None:
    """Refuse a service that may not call ``method`` (the bare name, such as CreateJob).

    Raises:
        CallerForbidden: the policy does not name the service.
    """
    if found.service not in policy.get(method, GATEWAY_ONLY):
        raise CallerForbidden(
            f"{found.service} may not call {method}", service=found.service, method=method
        )


def _public_key(name: str, pem: str) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"the trusted key of {name} must be an Ed25519 public key in PEM")
    return key
