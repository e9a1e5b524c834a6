"""What the handlers work with."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from lehr.postgres import Database
from services.scheduler.domain.placement import Tier
from services.scheduler.domain.retry import RetryPolicy
from services.scheduler.peers import Peers


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an operator decided."""

    retry: RetryPolicy
    plan_kept: timedelta = timedelta(days=7)
    """How long a plan can be launched."""
    script_allowed: bool = False
    """Scripted runs are test support."""


@dataclass(slots=True)
class Board:
    """The tiers as the last cycle saw them, to tell waiting users what is free; never decides."""

    tiers: dict[str, Tier] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The world around the handlers."""

    db: Database
    peers: Peers
    rules: Rules
    board: Board = field(default_factory=Board)
