"""Holds: prices locked and money set aside for a job, and when it flows back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto

from services.billing.domain.errors import HoldDiffers, HoldSuperseded


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a hold promises."""

    currency: str
    max_cost_micros: int
    """Most that may be charged for the job in all, earlier holds included."""
    max_duration: timedelta | None
    """Most running time of the job in all; None for no limit."""
    gpu_count: int
    tiers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One authorisation of a job, with the prices in force when it was placed."""

    ordinal: int
    terms: Terms
    rate_version: int
    prices: Mapping[str, int] = field(default_factory=dict)
    """Micros of one GPU for one hour, by tier."""
    place_time: datetime
    """When its prices were locked."""
    open_time: datetime
    """When its money was last set aside."""


class Placement(Enum):
    """What becomes of a request to place a hold."""

    KEEP = auto()
    """It is placed already: the same answer, nothing changes."""
    REOPEN = auto()
    """Its money had flowed back: hold it again, at the prices locked before."""
    REPLACE = auto()
    """Nobody used it and other terms are asked for: lock and hold anew."""
    ADD = auto()
    """It is new."""


def decide(
    known: Sequence[Hold], ordinal: int, terms: Terms, *, open_ordinal: int | None, is_used: bool
) -> Placement:
    """Decide on a request; ``is_used`` says whether a lease was granted under that hold.

    Raises:
        HoldDiffers: runs were launched under that hold with other terms.
        HoldSuperseded: a later hold applies and this one was never placed.
    """
    found = next((hold for hold in known if hold.ordinal == ordinal), None)
    newest = max((hold.ordinal for hold in known), default=0)
    if found is None:
        if ordinal < newest:
            raise HoldSuperseded(ordinal, newest)
        return Placement.ADD
    if found.terms != terms:
        if is_used or ordinal < newest:
            raise HoldDiffers(ordinal)
        return Placement.REPLACE
    if ordinal < newest or open_ordinal == ordinal:
        return Placement.KEEP
    return Placement.REOPEN


def hold_of(grant_time: datetime, known: Sequence[Hold]) -> int:
    """Return the ordinal of the hold under which a lease was granted; 0 where there is none.

    That is the newest placed before the grant. A hold always comes before its leases, so a grant
    older than all holds is a matter of clocks, and the first hold is meant.
    """
    ordinals = [hold.ordinal for hold in known if hold.place_time <= grant_time]
    return max(ordinals, default=min((hold.ordinal for hold in known), default=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What the scheduler last said about a job."""

    version: int = 0
    """Version of the job; 0 if the scheduler never spoke of it."""
    is_resting: bool = False
    """It rests or has ended."""
    change_time: datetime | None = None


def may_settle(
    hold: Hold,
    rest: Rest,
    *,
    last_grant_time: datetime | None,
    now: datetime,
    give_up_after: timedelta | None,
) -> bool:
    """Return whether the money of an open hold may flow back, once all leases are closed.

    ``last_grant_time`` is of the newest lease under the hold. The money may flow back when the job
    came to rest after that, or without a lease after the money was set aside. A rest from before is
    that of the run before: the job is being resumed. When no run follows for ``give_up_after``, the
    launch or resume was given up after its hold was placed; None does not judge that.
    """
    since = last_grant_time or hold.open_time
    if rest.is_resting and rest.change_time is not None and rest.change_time >= since:
        return True
    is_used = last_grant_time is not None
    if give_up_after is None or is_used or now - hold.open_time < give_up_after:
        return False
    return rest.is_resting or rest.version == 0
