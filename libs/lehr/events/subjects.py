"""Build and parse the subject of an event: ``evt.<noun>.<past>.v<major>.<tenant>.<id>``."""

import re
from dataclasses import dataclass

from lehr.events.base import Event
from lehr.events.errors import InvalidSubject

#: Stands for the platform itself, whose tenant is the empty string, for a token cannot be empty.
PLATFORM = "_"

_WORD = re.compile(r"[a-z][a-z0-9_]*\Z")
_TOKEN = re.compile(r"[A-Za-z0-9_\-=:/]{1,128}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The six tokens of a subject, the first of which is always ``evt``."""

    noun: str
    past: str
    version: int
    tenant: str
    subject_id: str

    def __str__(self) -> str:
        tenant = self.tenant or PLATFORM
        return f"evt.{self.noun}.{self.past}.v{self.version}.{tenant}.{self.subject_id}"


def build(event: Event) -> str:
    """Return the subject on which ``event`` is published.

    Raises:
        InvalidSubject: the tenant or the id holds a character that a subject must not hold.
    """
    if event.tenant == PLATFORM:
        raise InvalidSubject(f"tenant {PLATFORM!r} is reserved for the platform", tenant=PLATFORM)
    for name, token in (("tenant", event.tenant or PLATFORM), ("id", event.subject_id)):
        if not _TOKEN.match(token):
            raise InvalidSubject(
                f"{name} {token!r} of {event.type_name()} cannot be part of a subject: "
                "use 1 to 128 of the letters a-z A-Z 0-9 and _ - = : /",
                part=name,
                value=token,
            )
    return str(
        Subject(
            noun=event.NOUN,
            past=event.PAST,
            version=event.VERSION,
            tenant=event.tenant,
            subject_id=event.subject_id,
        )
    )


def parse(subject: str) -> Subject:
    """Take a subject apart.

    Raises:
        InvalidSubject: it does not have the six tokens in the right shape.
    """
    tokens = subject.split(".")
    if len(tokens) == 6:
        first, noun, past, version, tenant, subject_id = tokens
        shape = first == "evt" and bool(_WORD.match(noun)) and bool(_WORD.match(past))
        numbered = version[:1] == "v" and version[1:].isdigit()
        if shape and numbered and _TOKEN.match(tenant) and _TOKEN.match(subject_id):
            return Subject(
                noun=noun,
                past=past,
                version=int(version[1:]),
                tenant="" if tenant == PLATFORM else tenant,
                subject_id=subject_id,
            )
    raise InvalidSubject(
        f"{subject!r} is no subject of an event: it must read evt.<noun>.<past>.v<n>.<tenant>.<id>",
        subject=subject,
    )


def matches(pattern: str, subject: str) -> bool:
    """Tell whether a NATS pattern takes a subject: ``*`` is one token, ``>`` the rest."""
    wanted, have = pattern.split("."), subject.split(".")
    for index, word in enumerate(wanted):
        if word == ">":
            return len(have) > index
        if index >= len(have) or word not in ("*", have[index]):
            return False
    return len(wanted) == len(have)
