"""What the supervisor must know of a process to keep it running."""

import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from lehr.stack.errors import UnknownPart


class PartState(StrEnum):
    """How a part is.

    ``down`` rests until it is started; the others are on their way to ``ready``.
    """

    STARTING = "starting"
    """The process lives and has not answered its probe yet."""
    READY = "ready"
    """The last probe was answered."""
    UNREADY = "unready"
    """The process lives, was ready, and does not answer its probe now."""
    RESTARTING = "restarting"
    """The process died and is started again after a pause."""
    DOWN = "down"
    """The part was stopped on purpose, or never started."""


class PartStuck(Exception):  # noqa: N818 - no failure of the probe: it found out
    """A probe's word that the part will not serve again until it is started anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An account without rights that a part runs as."""

    uid: int
    """Its user id; must have an entry in the password file."""

    gid: int
    """Its only group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process of the stack."""

    name: str
    """Unique in the stack, and the name of its log."""

    argv: tuple[str, ...]
    """Program and arguments; holds no secret, for everybody can list arguments."""

    environment: Mapping[str, str]
    """The whole environment."""

    folder: Path
    """Working folder."""

    probe: Callable[[], Awaitable[None]]
    """Raises as long as the part cannot serve; PartStuck has it started anew."""

    port: int | None = None
    """Where others reach it on loopback; None for a part that is not called."""

    prepare: Callable[[], None] | None = None
    """Clears what a killed predecessor left behind; runs before every start."""

    user: User | None = None
    """Whom to become; None stays who we are."""

    stop_signal: signal.Signals = signal.SIGTERM
    """Asks for a clean end."""

    stop_seconds: float = 15.0
    """How long a clean end may take before the part is killed."""

    death_signal: signal.Signals = signal.SIGKILL
    """What the kernel sends when the supervisor dies."""

    rank: int = 0
    """Parts of a higher rank are stopped first."""


def full_name(name: str, known: Iterable[str]) -> str:
    """Complete the name of a part from what stands before its ``@``, if that is unique.

    Raises:
        UnknownPart: there is none, or several.
    """
    names = list(known)
    if name in names:
        return name
    alike = [full for full in names if full.partition("@")[0] == name]
    if len(alike) != 1:
        raise UnknownPart(f"there is no part {name}: choose of {', '.join(names)}", part=name)
    return alike[0]
