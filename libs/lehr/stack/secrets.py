"""Passwords and keys of one installation, generated once."""

import hashlib
import secrets as randomness
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from lehr.stack.layout import write_private

API_KEY_PREFIX = "lehr_sk_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What the parts of one installation know and nobody else; never printed."""

    postgres_admin: str = field(repr=False)
    """Password of the database's administrator."""

    postgres: Mapping[str, str] = field(repr=False)
    """Password of each service's role."""

    nats: str = field(repr=False)
    """Password of the platform's user at NATS."""

    s3_access_key: str
    """Name of the key pair at the object store."""

    s3_secret_key: str = field(repr=False)
    """Its secret half."""

    identity: Mapping[str, str] = field(repr=False)
    """Ed25519 private key of each service, PEM."""

    catalog: str = field(repr=False)
    """Key that the catalog encrypts stored credentials with, in hex."""

    api_key: str = field(repr=False)
    """The first API key: tenant ``default``, project ``default``."""

    @classmethod
    def load(cls, folder: Path, *, roles: Sequence[str], services: Sequence[str]) -> Self:
        """Read the secrets from a folder and generate those that are missing."""

        def kept(name: str, generate: Callable[[], str] = _password) -> str:
            path = folder / name
            if not path.exists():
                write_private(path, generate().encode())
            path.chmod(0o600)
            return path.read_text()

        return cls(
            postgres_admin=kept("postgres_admin"),
            postgres={role: kept(f"postgres_{role}") for role in roles},
            nats=kept("nats"),
            s3_access_key=kept("s3_access_key", _access_key),
            s3_secret_key=kept("s3_secret_key"),
            identity={name: kept(f"identity_{name}.pem", _identity_key) for name in services},
            catalog=kept("catalog", lambda: randomness.token_hex(32)),
            api_key=kept("api_key", _api_key),
        )

    @property
    def api_key_sha256(self) -> str:
        """What the gateway is told of the first API key, hexadecimal."""
        return hashlib.sha256(self.api_key.encode()).hexdigest()

    @property
    def trusted_keys(self) -> dict[str, str]:
        """Public key of each service, PEM."""
        return {service: _public_key(key) for service, key in self.identity.items()}


def _password() -> str:
    # A letter first: NATS reads a variable that looks like a number as one.
    return "p" + randomness.token_hex(24)


def _access_key() -> str:
    return "LEHR" + randomness.token_hex(8).upper()


def _api_key() -> str:
    return API_KEY_PREFIX + randomness.token_hex(24)


def _identity_key() -> str:
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _public_key(private_key: str) -> str:
    key = load_pem_private_key(private_key.encode(), password=None)
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
