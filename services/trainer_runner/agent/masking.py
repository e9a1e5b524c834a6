"""Keeps secrets out of what trainers print: the agent's own, and what looks like one."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus, urlsplit

MASK = b"[masked]"

_SECRET_NAME = re.compile(r"(?i)key|secret|passw|token|credential|_dsn$|signature")
_LENGTH_MIN = 8
_LINE_MIN = 20

#: Secrets of others, told by their look. Every repetition has a bound: the text is hostile, and one
#: line must not cost more than some milliseconds.
_LOOKS: tuple[tuple[re.Pattern[bytes], bytes], ...] = (
    (re.compile(rb"\b(?:hf|ghp|lehr_sk|sk|xox[bp])[_-][A-Za-z0-9_-]{16,128}"), MASK),
    (re.compile(rb"\bAKIA[0-9A-Z]{16}\b"), MASK),
    (re.compile(rb"(://[^\s:/@]{0,64}:)[^\s@/]{1,256}(@)"), rb"\1" + MASK + rb"\2"),
    (
        re.compile(
            rb"(?i)([?&](?:x-amz-[a-z-]{1,32}|signature|(?:access_)?token)=)[^&\s'\"]{1,2048}"
        ),
        rb"\1" + MASK,
    ),
    (re.compile(rb"\beyJ[\w-]{8,256}\.[\w-]{8,4096}\.[\w-]{0,1024}"), MASK),
)
_HINTS = (b"hf_", b"ghp_", b"sk_", b"sk-", b"xox", b"AKIA", b"://", b"=", b"eyJ")


class Masker:
    """Replaces known secrets, also in base64 and address-encoded, and those told by look."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        # Longest first: a form may contain another.
        self._forms = sorted(forms, key=lambda form: (-len(form), form))
        self.longest = len(self._forms[0]) if self._forms else 0
        """Bytes of the longest form."""

    def mask(self, data: bytes) -> bytes:
        """Return ``data`` with every secret replaced."""
        for form in self._forms:
            data = data.replace(form, MASK)
        if any(hint in data for hint in _HINTS):
            for look, replacement in _LOOKS:
                data = look.sub(replacement, data)
        return data

    def mask_text(self, text: str) -> str:
        """Return ``text`` with every secret replaced."""
        masked = self.mask(text.encode("utf-8", errors="surrogatepass"))
        return masked.decode("utf-8", errors="backslashreplace")


def secrets_of(environment: Mapping[str, str]) -> set[str]:
    """Return the values of an environment that must not be shown to anybody."""
    found = {value for name, value in environment.items() if _SECRET_NAME.search(name)}
    return found | {password for value in environment.values() if (password := _password(value))}


def _password(value: str) -> str | None:
    try:
        return urlsplit(value).password if "://" in value else None
    except ValueError:
        return None


def _forms(secret: str) -> Iterable[bytes]:
    if len(secret) < _LENGTH_MIN:
        return
    lines = secret.splitlines()
    if len(lines) > 1:
        # A PEM is printed line by line; its first and last line are no secret.
        for line in lines:
            if len(line) >= _LINE_MIN and not line.startswith("-----"):
                yield from _forms(line)
        yield repr(secret)[1:-1].encode()
    raw = secret.encode("utf-8", errors="surrogateescape")
    yield raw
    yield quote(secret, safe="", errors="surrogateescape").encode()
    yield quote_plus(secret, errors="surrogateescape").encode()
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + raw).rstrip(b"=")
        # The ends mix with what stands around the secret.
        core = encoded[-(-offset * 8 // 6) : len(raw + b"\0" * offset) * 8 // 6]
        if len(core) >= _LENGTH_MIN:
            yield core
            yield core.replace(b"+", b"-").replace(b"/", b"_")
