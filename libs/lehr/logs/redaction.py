"""Masks what must never be in a log: secrets by key and by look, and the content of samples."""

import re
from collections.abc import Mapping, MutableMapping
from typing import Any

MASK = "[masked]"

_SECRET_KEY = re.compile(
    r"(.+_)?(authorization|password|passwd|passphrase|secret|token|key|credentials?|cookie|dsn"
    r"|signature)|x_lehr_context|key_pem|presigned_url|(upload|download)_url"
)
# A job log is a product, not our log: what people train on stays out of ours. Counts may stay.
_CONTENT_KEY = re.compile(r"(prompt|completion|sample)s?|messages|text|(sample|row)_text")
_NOT_SECRET = frozenset({"key", "object_key", "primary_key", "foreign_key", "routing_key"})

# Secrets that travel inside other texts: URLs, headers, tracebacks.
_LOOKS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(://[^\s:/@]*:)[^\s@]+(@)"), rf"\1{MASK}\2"),
    (
        re.compile(r"(?i)([?&](?:x-amz-[a-z-]+|signature|token|access_token|key)=)[^&\s'\"]+"),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9+/=._~-]{8,}"), rf"\1 {MASK}"),
    (re.compile(r"\bhf_[A-Za-z0-9]{20,}"), MASK),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"), MASK),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]+-----|\Z)", re.S), MASK),
)


def redact(_logger: object, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Return the log entry with every secret masked; a structlog processor."""
    return {key: _masked(key, value) for key, value in event.items()}


def _masked(key: object, value: object) -> object:
    name = str(key).lower().replace("-", "_")
    if _SECRET_KEY.fullmatch(name) and name not in _NOT_SECRET:
        return value if value is None or isinstance(value, bool) else MASK
    if _CONTENT_KEY.fullmatch(name) and not isinstance(value, (int, float, type(None))):
        return MASK
    return _cleaned(value)


def _cleaned(value: object) -> object:
    match value:
        case str():
            return redact_text(value)
        case bytes():
            # Bodies are content, whatever they hold.
            return f"[{len(value)} bytes]"
        case Mapping():
            return {key: _masked(key, inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_cleaned(inner) for inner in value]
        case BaseException():
            return redact_text(f"{type(value).__name__}: {value}")
        case _:
            return value


def redact_text(text: str) -> str:
    """Return ``text`` without the passwords, signatures and tokens that can be told by look."""
    for look, replacement in _LOOKS:
        text = look.sub(replacement, text)
    return text
