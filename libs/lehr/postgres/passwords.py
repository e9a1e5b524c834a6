"""Password verifiers, so that a password is never part of a statement or a server's log."""

import base64
import hashlib
import hmac
import os

ITERATIONS = 4096
"""What Postgres itself takes by default."""


def scram_verifier(password: str) -> str:
    """Return what Postgres stores for SCRAM-SHA-256 (RFC 5802, section 3; RFC 7677).

    Only printable ASCII: other texts would need SASLprep, and these passwords are made by us.
    """
    if not password or not password.isascii() or not password.isprintable():
        raise ValueError("a role's password must be printable ASCII")
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return f"SCRAM-SHA-256${ITERATIONS}:{_text(salt)}${_text(stored_key)}:{_text(server_key)}"


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")
