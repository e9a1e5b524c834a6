"""Whatever ages a node reports, in whatever order, the instants stay in order and in the past."""

from datetime import datetime, timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.training.ends import RunEnd
from services.gpu_allocator.domain.lease import Lease, LeasePhase, LeaseReport
from tests.support.gpu_allocator import T0, a_lease

P = LeasePhase
ages = (
    st.none()
    | st.timedeltas(min_value=timedelta(days=-2), max_value=timedelta(days=4000))
    | st.timedeltas(min_value=timedelta(), max_value=timedelta(minutes=5))
)
reports = st.builds(
    LeaseReport,
    lease_id=st.just("lease_1"),
    epoch=st.just(7),
    phase=st.sampled_from([P.GRANTED, P.STARTING, P.RUNNING, P.DRAINING, P.CLOSED]),
    running_age=ages,
    progress_age=ages,
    end_age=ages,
    committed_age=ages,
    close_reason=st.sampled_from([*RunEnd, "", "NOBODY_KNOWS"]),
)
#: The clock moves on, and now and then steps back.
steps = st.timedeltas(min_value=timedelta(minutes=-5), max_value=timedelta(minutes=10))
lives = st.lists(st.tuples(steps, reports), max_size=12)


def live(life: list[tuple[timedelta, LeaseReport]]) -> list[tuple[Lease, datetime]]:
    """Return every version of a lease with the newest time that anybody has read by then."""
    lease, now, newest = a_lease(), T0, T0
    seen = [(lease, newest)]
    for step, report in life:
        now += step
        newest = max(newest, now)
        if not lease.is_fenced_for(report):
            lease = lease.renew(report, now=now)
        seen.append((lease, newest))
    return seen


@settings(deadline=None)
@given(lives)
def test_instants_are_in_order_and_never_in_the_future(
    life: list[tuple[timedelta, LeaseReport]],
) -> None:
    for lease, newest in live(life):
        begin = lease.running_time or lease.grant_time
        known = [
            instant
            for instant in (lease.progress_time, lease.end_time, lease.committed_time)
            if instant is not None
        ]
        assert lease.grant_time <= begin <= newest
        assert all(begin <= instant <= newest for instant in known)
        assert lease.running_time is not None or not known


@settings(deadline=None)
@given(lives)
def test_billed_instants_are_stamped_once_and_versions_grow_by_one(
    life: list[tuple[timedelta, LeaseReport]],
) -> None:
    seen = [lease for lease, _ in live(life)]
    for before, after in pairwise(seen):
        assert before.running_time in {None, after.running_time}
        assert before.end_time in {None, after.end_time}
        assert before.close_time in {None, after.close_time}
        assert after.version - before.version in {0, 1}
        assert (before.phase == after.phase) or after.version == before.version + 1
        assert (before.committed_time or T0) <= (after.committed_time or T0)


@settings(deadline=None)
@given(lives)
def test_what_is_over_has_an_end_if_it_ever_computed(
    life: list[tuple[timedelta, LeaseReport]],
) -> None:
    lease, _ = live(life)[-1]
    is_over = lease.phase in {P.DRAINING, P.CLOSED}

    assert not is_over or (lease.end_time is None) == (lease.running_time is None)
    assert (lease.phase is P.CLOSED) == (lease.close_time is not None)
    assert (lease.phase is P.CLOSED) == (lease.close_reason != "")
