"""The bill against an oracle that looks at every tenth of a second, and what must not change it."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.billing.domain.errors import BudgetBelowCharged
from services.billing.domain.funding import check_above
from services.billing.domain.holds import Hold
from services.billing.domain.lease import Lease, LeasePhase
from services.billing.domain.rating import rate
from services.billing.domain.usage import merged
from tests.support.billing import EUR, a_hold, a_lease, at

Price = tuple[str, int, int]
"""Tier, GPUs, micros an hour."""

STEP = 0.1
LENGTH = 60.0

#: The second hold has another price of h, and that of b once more.
PRICES = ({"h": 3_599_999, "b": 7_000_001}, {"h": 1_234_567, "b": 7_000_001})
REASONS = ["COMPLETED", "USER_STOPPED", "NODE_LOST", "PLATFORM_FAULT", "OUT_OF_MEMORY", "?"]

instants = st.integers(0, int(LENGTH / STEP)).map(lambda steps: round(steps * STEP, 1))


@st.composite
def leases_of_a_job(draw: st.DrawFn) -> list[Lease]:
    return [draw(a_random_lease(epoch)) for epoch in range(1, draw(st.integers(1, 4)) + 1)]


@st.composite
def a_random_lease(draw: st.DrawFn, epoch: int) -> Lease:
    maybe = st.one_of(st.none(), instants)
    running = draw(maybe)
    phase = draw(st.sampled_from(list(LeasePhase)))
    end = draw(maybe) if running is not None else None
    return a_lease(
        running,
        None if end is None else max(end, running or 0),
        phase=phase,
        alive=draw(maybe),
        stop=draw(maybe),
        funded=draw(maybe),
        committed=draw(maybe),
        close_reason=draw(st.sampled_from(REASONS)),
        epoch=epoch,
        tier=draw(st.sampled_from(["h", "b"])),
        gpu_count=draw(st.sampled_from([1, 3])),
        hold_ordinal=draw(st.sampled_from([1, 2])),
        version=draw(st.integers(1, 9)),
    )


def holds(*, max_cost: int = 1000 * EUR) -> list[Hold]:
    return [
        a_hold(1, prices=PRICES[0], max_cost=max_cost),
        a_hold(2, prices=PRICES[1], max_cost=max_cost, placed=-50),
    ]


def counts(lease: Lease, moment: float) -> bool:
    """Say in plain words whether the tenth of a second after ``moment`` is billed."""
    now = at(moment)
    if lease.running_time is None or now < lease.running_time:
        return False
    for limit in (lease.stop_time, lease.funded_until, lease.end_time):
        if limit is not None and now >= limit:
            return False
    if lease.end_time is None and (lease.alive_time is None or now >= lease.alive_time):
        return False
    if lease.phase == "LOST" and lease.alive_time is not None and now >= lease.alive_time:
        return False
    is_ours = lease.close_reason in {"NODE_LOST", "PLATFORM_FAULT", "?"}
    if lease.phase in {"LOST", "CLOSED"} and is_ours:
        return lease.committed_time is not None and now < lease.committed_time
    return True


def oracle(leases: Sequence[Lease], known: Sequence[Hold]) -> dict[Price, tuple[int, int]]:
    """Return seconds and micros of each price by looking at every tenth of a second."""
    tenths: dict[Price, int] = defaultdict(int)
    for step in range(int(LENGTH / STEP) + 1):
        there = [one for one in leases if counts(one, round(step * STEP, 1))]
        if there:
            newest = max(there, key=lambda one: one.epoch)
            locked = next(one for one in known if one.ordinal == newest.hold_ordinal)
            tenths[newest.tier, newest.gpu_count, locked.prices[newest.tier]] += 1
    found = {}
    for (tier, gpus, price), count in tenths.items():
        seconds = count // 10
        found[tier, gpus, price] = (seconds, seconds * gpus * price // 3600)
    return {price: value for price, value in found.items() if value[0]}


@given(leases=leases_of_a_job())
@settings(max_examples=300, deadline=None)
def test_the_bill_is_that_of_a_naive_observer(leases: list[Lease]) -> None:
    bill = rate(leases, holds())

    found: dict[Price, tuple[int, int]] = {}
    for line in bill.lines:
        price = (line.key.tier, line.key.gpu_count, line.micro_per_hour)
        seconds, micros = found.get(price, (0, 0))
        found[price] = (seconds + line.billed_seconds, micros + line.amount_micros)
    assert found == oracle(leases, holds())


@given(leases=leases_of_a_job(), seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_the_order_and_number_of_tellings_change_nothing(leases: list[Lease], seed: int) -> None:
    older = [
        replace(lease, version=lease.version - 1, end_time=None, alive_time=None, stop_time=None)
        for lease in leases
        if lease.version > 1
    ]
    told = [replace(lease, hold_ordinal=0) for lease in (*leases, *leases, *older, *leases)]
    random.Random(seed).shuffle(told)  # noqa: S311 - no secret

    known: list[Lease] = []
    for lease in told:
        known = merged(known, [lease], holds())

    expected = [replace(lease, hold_ordinal=2) for lease in leases]
    assert rate(known, holds()) == rate(expected, holds())


@given(
    begin=instants,
    cuts=st.lists(instants, max_size=6),
    end=instants,
    seed=st.integers(0, 2**32),
)
@settings(max_examples=200, deadline=None)
def test_where_time_is_cut_changes_nothing(
    begin: float, cuts: list[float], end: float, seed: int
) -> None:
    last = max(begin, end)
    edges = [begin, *sorted(cut for cut in cuts if begin < cut < last), last]
    pieces = [
        a_lease(a, b, phase="CLOSED", close_reason="COMPLETED", epoch=number)
        for number, (a, b) in enumerate(pairwise(edges), 1)
    ]
    random.Random(seed).shuffle(pieces)  # noqa: S311 - no secret
    whole = a_lease(begin, last, phase="CLOSED", close_reason="COMPLETED")

    assert rate(pieces, holds()) == rate([whole], holds())


@given(leases=leases_of_a_job(), max_cost=st.integers(1, 200_000))
@settings(max_examples=150, deadline=None)
def test_no_authorisation_is_passed(leases: list[Lease], max_cost: int) -> None:
    bill = rate(leases, holds(max_cost=max_cost))

    assert bill.total_micros == min(max_cost, rate(leases, holds()).total_micros)
    assert all(line.amount_micros >= 0 for line in bill.lines)


@given(leases=leases_of_a_job(), allowed=instants.filter(bool))
@settings(max_examples=150, deadline=None)
def test_no_time_limit_is_passed(leases: list[Lease], allowed: float) -> None:
    limit = timedelta(seconds=allowed)
    limited = [replace(hold, terms=replace(hold.terms, max_duration=limit)) for hold in holds()]

    assert rate(leases, limited).billed_seconds <= limit.total_seconds()


@given(alive=st.lists(instants, min_size=2))
@settings(max_examples=100, deadline=None)
def test_the_cost_of_a_running_job_never_falls(alive: list[float]) -> None:
    known: list[Lease] = []
    totals = []
    for moment in alive:
        known = merged(known, [a_lease(0, alive=moment)], holds())
        totals.append(rate(known, holds()).total_micros)

    assert totals == sorted(totals)


@given(
    leases=leases_of_a_job(),
    first=st.tuples(st.integers(1, 200_000), st.none() | instants.filter(bool)),
    later=st.tuples(st.integers(1, 10**9), st.none() | st.integers(1, 70_000_000)),
)
@settings(max_examples=300, deadline=None)
def test_placing_a_hold_never_lowers_a_bill(
    leases: list[Lease], first: tuple[int, float | None], later: tuple[int, int | None]
) -> None:
    max_cost, allowed = first
    limit = None if allowed is None else timedelta(seconds=allowed)
    known = [
        replace(hold, terms=replace(hold.terms, max_duration=limit))
        for hold in holds(max_cost=max_cost)
    ]
    before = rate(leases, known)
    more_cost, microseconds = later
    new = a_hold(
        3,
        prices=PRICES[1],
        max_cost=more_cost,
        max_duration=None if microseconds is None else timedelta(microseconds=microseconds),
        placed=70,
    )
    if more_cost <= before.total_micros:
        with pytest.raises(BudgetBelowCharged):
            check_above("job_1", before, new)
        return

    assert rate(leases, [*known, new]) == before
