"""Silence ends leases; an outage of the allocator does not."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gpu_allocator.domain.expiry import Amnesty, Outage, beat, expire
from services.gpu_allocator.domain.lease import LeasePhase
from tests.support.gpu_allocator import LIMITS, a_lease, amnesty, at, seconds

P = LeasePhase
NO_OUTAGE = 10_000_000.0


@pytest.mark.parametrize(
    ("phase", "last_second_in_time", "then"),
    [
        # Granted at 0; otherwise heard last at 20.
        (P.GRANTED, 60, P.CLOSED),
        (P.STARTING, 50, P.LOST),
        (P.RUNNING, 50, P.LOST),
        (P.DRAINING, 50, P.LOST),
        (P.LOST, 1220, P.CLOSED),
    ],
)
def test_each_phase_bears_silence_for_so_long_and_no_longer(
    phase: LeasePhase, last_second_in_time: int, then: LeasePhase
) -> None:
    lease = a_lease(phase)
    quiet = amnesty(beat=NO_OUTAGE)

    in_time = expire(lease, amnesty=quiet, limits=LIMITS, now=at(last_second_in_time))
    too_late = expire(lease, amnesty=quiet, limits=LIMITS, now=at(last_second_in_time + 0.001))

    assert in_time is lease
    assert (too_late.phase, too_late.close_reason) == (then, "NODE_LOST")


def test_a_closed_lease_stays_as_it_is() -> None:
    closed = a_lease(P.CLOSED)

    quiet = amnesty(beat=NO_OUTAGE)
    assert expire(closed, amnesty=quiet, limits=LIMITS, now=at(1e6)) is closed


def test_a_run_that_never_begins_to_compute_is_the_platforms_fault() -> None:
    lease = a_lease(P.STARTING, alive_time=at(1801))

    ended = expire(lease, amnesty=amnesty(beat=1801), limits=LIMITS, now=at(1801))

    assert (ended.phase, ended.close_reason) == (P.CLOSED, "PLATFORM_FAULT")


def test_an_outage_of_the_allocator_does_not_count() -> None:
    lease = a_lease(P.RUNNING)

    away = amnesty((22, 622), beat=622)
    kept = expire(lease, amnesty=away, limits=LIMITS, now=at(650))
    lost = expire(lease, amnesty=amnesty((22, 622), beat=651), limits=LIMITS, now=at(651))

    assert kept is lease
    assert lost.phase is P.LOST


def test_an_outage_that_nobody_has_written_down_yet_does_not_count_either() -> None:
    assert amnesty(beat=25).silence(at(20), at(500)) == seconds(5)


def test_only_the_part_of_an_outage_after_the_last_word_is_excused() -> None:
    assert amnesty((10, 40), beat=60).silence(at(20), at(60)) == seconds(20)


def test_silence_is_never_negative() -> None:
    assert amnesty(beat=20).silence(at(20), at(10)) == seconds(0)


def test_heartbeats_further_apart_than_five_seconds_show_an_outage() -> None:
    assert beat(at(10), at(15)) is None
    assert beat(at(10), at(15.001)) == Outage(begin_time=at(10), end_time=at(15.001))
    assert beat(at(10), at(5)) is None


@settings(deadline=None)
@given(st.lists(st.integers(min_value=0, max_value=20_000), min_size=1, max_size=40))
def test_silence_counts_exactly_the_time_between_close_heartbeats(gaps_ms: list[int]) -> None:
    gaps = [timedelta(milliseconds=gap) for gap in gaps_ms]
    now, outages = at(0), []
    for gap in gaps:
        if (outage := beat(now, now + gap)) is not None:
            outages.append(outage)
        now += gap

    silence = Amnesty(beat_time=now, outages=tuple(outages)).silence(at(0), now)

    assert silence == sum((gap for gap in gaps if gap <= seconds(5)), start=timedelta())
