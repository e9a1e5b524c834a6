"""Ids that say what they name, sort by time of birth and are safe in subjects, keys and URLs."""

import re
import secrets
import time
import uuid

from lehr.errors import FieldViolation, InvalidArgument

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32, lower case: no i, l, o, u."""

LENGTH = 26
"""Digits of one id: 128 bits, five a digit."""

_NOUN = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# A word of event subjects and object keys; a wildcard there would show everybody's events.
_SCOPE = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
# The first digit holds the upper three bits only.
_DIGITS = re.compile(rf"[0-7][{ALPHABET}]{{{LENGTH - 1}}}")
_DERIVED = uuid.UUID("5f0f6a4e-6d0b-5b1c-9d8e-1c7a3c1e4f60")


def new_id(noun: str) -> str:
    """Return a fresh id such as ``job_01k9...``; later ids sort after earlier ones.

    Within one process ids keep their order down to a quarter of a microsecond.
    """
    return _spell(noun, event_uuid())


def derived_id(noun: str, tenant: str, key: str) -> str:
    """Return the one id that belongs to a tenant's request key, the same at every call."""
    # The length keeps ("ab", "c") apart from ("a", "bc").
    name = f"{noun}:{len(tenant)}:{tenant}:{key}"
    return _spell(noun, uuid.uuid5(_DERIVED, name))


def parse_id(value: str, noun: str) -> str:
    """Return ``value`` if it is an id of ``noun``.

    Raises:
        InvalidArgument: it is not; the field is named ``<noun>_id``.
    """
    prefix, _, digits = value.rpartition("_")
    if prefix == noun and _DIGITS.fullmatch(digits):
        return value
    expected = f"{noun}_ and {LENGTH} letters or digits"
    raise InvalidArgument(
        f"{value[:80]!r} is not an id of a {noun}: give {expected}",
        reason="ID_MALFORMED",
        fields=[FieldViolation(field=f"{noun}_id", description=f"must be {expected}")],
        value=value[:80],
        noun=noun,
    )


def is_scope(value: str) -> bool:
    """Return whether a tenant or project may be called so."""
    return _SCOPE.fullmatch(value) is not None


def event_uuid() -> uuid.UUID:
    """Return a UUID of version 7 with sub-millisecond order (RFC 9562, sections 5.7 and 6.2)."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    fraction = (rest << 12) // 1_000_000
    bits = (milliseconds & (1 << 48) - 1) << 80 | 7 << 76 | fraction << 64
    return uuid.UUID(int=bits | 0b10 << 62 | secrets.randbits(62))


def _spell(noun: str, value: uuid.UUID) -> str:
    if not _NOUN.fullmatch(noun):
        raise ValueError(f"{noun!r} is not a noun in lower_snake case")
    digits = (ALPHABET[value.int >> shift & 31] for shift in range(5 * (LENGTH - 1), -1, -5))
    return f"{noun}_{''.join(digits)}"
