"""Encrypts stored secrets, so that a copy of the database opens nothing."""

import json
import os
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lehr.errors import FailedPrecondition

KEY_BYTES = 32
_NONCE_BYTES = 12


class CredentialsOff(FailedPrecondition):
    """The installation has no key to keep secrets with."""

    reason = "CREDENTIALS_OFF"

    def __init__(self) -> None:
        super().__init__(
            "credentials are not kept here: the operator has to set CATALOG_SECRET_KEY,"
            f" {KEY_BYTES} random bytes as hex digits"
        )


class CredentialUnreadable(FailedPrecondition):
    """The key is another one than the secret was stored with."""

    reason = "CREDENTIAL_UNREADABLE"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the credential {name} cannot be read: the catalog's key was changed since it was"
            " stored; store it again",
            name=name,
        )


class Vault:
    """AES-256-GCM; a secret opens only under the tenant, project and name it was stored with."""

    def __init__(self, key: str) -> None:
        """Take a key in hex; an empty one keeps nothing.

        Raises:
            ValueError: it is not the hex of 32 bytes.
        """
        if key and len(bytes.fromhex(key)) != KEY_BYTES:
            raise ValueError("the key has the wrong length")
        self._cipher = AESGCM(bytes.fromhex(key)) if key else None

    def seal(self, place: tuple[str, str, str], secret: Mapping[str, str]) -> bytes:
        """Encrypt a secret for a place: tenant, project and name.

        Raises:
            CredentialsOff: there is no key.
        """
        if self._cipher is None:
            raise CredentialsOff
        nonce = os.urandom(_NONCE_BYTES)
        content = json.dumps(dict(secret)).encode()
        return nonce + self._cipher.encrypt(nonce, content, _bound_to(place))

    def open(self, place: tuple[str, str, str], sealed: bytes) -> dict[str, str]:
        """Decrypt a secret.

        Raises:
            CredentialsOff: there is no key.
            CredentialUnreadable: it was sealed with another key, or for another place.
        """
        if self._cipher is None:
            raise CredentialsOff
        nonce, content = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            found: dict[str, str] = json.loads(
                self._cipher.decrypt(nonce, content, _bound_to(place))
            )
        except InvalidTag:
            raise CredentialUnreadable(place[-1]) from None
        return found


def _bound_to(place: tuple[str, str, str]) -> bytes:
    return json.dumps(place).encode()
