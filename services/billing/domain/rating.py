"""From leases to seconds to money: one pure function, whatever the order and number of events."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from lehr.money import cost_micros
from lehr.training.ends import PLATFORM_ENDS, RunEnd
from services.billing.domain.holds import Hold
from services.billing.domain.intervals import MICROSECOND, Interval, total, without
from services.billing.domain.lease import Lease, LeasePhase

SECOND = 1_000_000
"""Microseconds of a second."""

#: Ends that are charged up to the end; every other reason, an unknown one included, is ours.
CHARGED_ENDS = frozenset(RunEnd) - PLATFORM_ENDS - {RunEnd.NO_CAPACITY}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LineKey:
    """Time under one hold on one tier; what has one price over several holds is rounded once."""

    hold_ordinal: int
    tier: str
    gpu_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Price:
    """What is rounded as a whole, however many holds it goes over."""

    tier: str
    gpu_count: int
    micro_per_hour: int

    @classmethod
    def of(cls, key: LineKey, micro_per_hour: int) -> Self:
        return cls(tier=key.tier, gpu_count=key.gpu_count, micro_per_hour=micro_per_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Time of one price under one hold."""

    key: LineKey
    micro_per_hour: int
    billed_seconds: int
    amount_micros: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What a job has cost, by all that is known."""

    lines: tuple[Line, ...]
    """Those with time, in the order of their keys."""
    credited: timedelta
    """Running time that is not billed because the platform was at fault."""

    @property
    def total_micros(self) -> int:
        """The sum, at most what was authorised."""
        return sum(line.amount_micros for line in self.lines)

    @property
    def billed_seconds(self) -> int:
        """The sum of whole seconds."""
        return sum(line.billed_seconds for line in self.lines)

    def seconds_at(self, *, tier: str, gpu_count: int, micro_per_hour: int) -> int:
        """Return the whole seconds of one price, over all holds."""
        price = _Price(tier=tier, gpu_count=gpu_count, micro_per_hour=micro_per_hour)
        return sum(
            line.billed_seconds
            for line in self.lines
            if _Price.of(line.key, line.micro_per_hour) == price
        )


def computed(lease: Lease) -> Interval | None:
    """Return the time in which a lease may count: from its first batch to the last that is proven.

    That is the earliest of: end of compute, or the last proof of life while no end is known;
    stop acknowledged; what is paid for. Noticing an end later makes nothing longer.
    """
    if lease.running_time is None:
        return None
    proof = lease.end_time or lease.alive_time or lease.running_time
    if lease.phase is LeasePhase.LOST and lease.alive_time is not None:
        proof = min(proof, lease.alive_time)
    limits = [proof, lease.stop_time, lease.funded_until]
    return _until_first(lease.running_time, limits)


def billable(lease: Lease) -> Interval | None:
    """Return the time that is billed: after a fault of the platform only what needs no redoing.

    Work after the newest committed checkpoint was taken is done again, or was for nothing.
    """
    counted = computed(lease)
    if counted is None or not is_platform_fault(lease):
        return counted
    return _until_first(counted.begin, [counted.end, lease.committed_time or counted.begin])


def is_platform_fault(lease: Lease) -> bool:
    """Return whether a lease ended through no doing of its user."""
    ended = lease.phase in {LeasePhase.LOST, LeasePhase.CLOSED}
    return ended and lease.close_reason not in CHARGED_ENDS


def rate(leases: Iterable[Lease], holds: Sequence[Hold]) -> Bill:
    """Price all leases of a job.

    Every instant is billed once, to the newest lease that has it. The time of a price is rounded
    down to whole seconds once over all holds, then priced; never above what a line's own hold
    allows in time, nor above what its hold and the later ones allow in money.
    """
    held = {hold.ordinal: hold for hold in holds}
    known = [lease for lease in leases if _is_priced(lease, held)]
    times = _cap(_times(known), {o: _time_cap(held[o]) for o in held})
    prices = {key: held[key.hold_ordinal].prices[key.tier] for key in times}
    seconds, amounts = _rounded(times, prices)
    amounts = _cap(amounts, {o: _money_cap(o, holds) for o in held})
    lines = (
        Line(
            key=key,
            micro_per_hour=prices[key],
            billed_seconds=seconds[key],
            amount_micros=amounts[key],
        )
        for key in seconds
        if seconds[key]
    )
    return Bill(lines=tuple(lines), credited=sum(map(_credit, known), timedelta()))


def max_cost(holds: Sequence[Hold]) -> int:
    """Return the most that may be charged for the job, in micros."""
    newest = max((hold.ordinal for hold in holds), default=0)
    return _money_cap(newest, holds) or 0


def _is_priced(lease: Lease, held: Mapping[int, Hold]) -> bool:
    # What nobody agreed to a price for is never charged; reconciliation tells of it.
    hold = held.get(lease.hold_ordinal)
    return hold is not None and lease.tier in hold.prices


def _times(leases: Iterable[Lease]) -> dict[LineKey, int]:
    """Return the microseconds of each line, in the order of the keys."""
    times: dict[LineKey, int] = {}
    taken: list[Interval] = []
    for lease in sorted(leases, key=lambda one: one.epoch, reverse=True):
        interval = billable(lease)
        if interval is None:
            continue
        key = LineKey(hold_ordinal=lease.hold_ordinal, tier=lease.tier, gpu_count=lease.gpu_count)
        times[key] = times.get(key, 0) + total(without(interval, taken))
        taken.append(interval)
    return dict(sorted(times.items()))


def _rounded(
    times: Mapping[LineKey, int], prices: Mapping[LineKey, int]
) -> tuple[dict[LineKey, int], dict[LineKey, int]]:
    """Return whole seconds and micros of each line.

    A line gets what it adds to the whole of its price, so that a job stopped and resumed a hundred
    times is rounded as seldom as one that ran through.
    """
    sums: dict[_Price, int] = {}
    seconds, amounts = {}, {}
    for key, microseconds in times.items():
        price = _Price.of(key, prices[key])
        before = sums.get(price, 0)
        sums[price] = before + microseconds
        first, last = before // SECOND, sums[price] // SECOND
        seconds[key] = last - first
        amounts[key] = _cost(last, price) - _cost(first, price)
    return seconds, amounts


def _cost(seconds: int, price: _Price) -> int:
    return cost_micros(seconds, price.gpu_count, price.micro_per_hour)


def _cap(parts: dict[LineKey, int], caps: dict[int, int | None]) -> dict[LineKey, int]:
    """Cut parts, in the order of their keys, so that no hold's cap is passed on the way.

    What came before is never cut by the cap of a later hold.
    """
    capped: dict[LineKey, int] = {}
    spent = 0
    for key, part in parts.items():
        cap = caps[key.hold_ordinal]
        capped[key] = part if cap is None else max(0, min(part, cap - spent))
        spent += capped[key]
    return capped


def _money_cap(ordinal: int, holds: Sequence[Hold]) -> int | None:
    # What is set aside now must last for what is told late of earlier runs, so a later and lower
    # authorisation counts for them too; none is accepted that is not above what the job has cost.
    return min(
        (hold.terms.max_cost_micros for hold in holds if hold.ordinal >= ordinal), default=None
    )


def _time_cap(hold: Hold) -> int | None:
    # A later hold says how much longer the job may run; what ran under this one was allowed by it.
    limit = hold.terms.max_duration
    return None if limit is None else limit // MICROSECOND


def _credit(lease: Lease) -> timedelta:
    counted, billed = computed(lease), billable(lease)
    if counted is None or billed is None:
        return timedelta()
    return counted.end - billed.end


def _until_first(begin: datetime, limits: Sequence[datetime | None]) -> Interval:
    end = min(limit for limit in limits if limit is not None)
    return Interval(begin, max(begin, end))
