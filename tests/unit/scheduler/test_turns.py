"""In which order the queue is served."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.domain.placement import next_placements
from services.scheduler.domain.turns import AGEING, Share, Turns, Waiting, in_turns, position
from tests.support.scheduler import NOON, SECOND, a_tier, waiting


def ids(queue: list[Waiting], shares: dict[tuple[str, str], Share], after: timedelta) -> list[str]:
    return [job.job_id for job in in_turns(queue, shares, now=NOON + after)]


def test_priority_counts_within_a_project_and_not_against_others() -> None:
    queue = [
        waiting("a1", "h", tenant="a"),
        waiting("a2", "h", tenant="a", priority=1, queue_time=NOON + SECOND),
        waiting("b1", "h", tenant="b", priority=100, queue_time=NOON + 2 * SECOND),
        waiting("b2", "h", tenant="b", priority=100, queue_time=NOON + 3 * SECOND),
        waiting("c1", "h", tenant="a", project="c", priority=-9, queue_time=NOON + 4 * SECOND),
    ]

    assert ids(queue, {}, 5 * SECOND) == ["a2", "b1", "c1", "b2", "a1"]


def test_who_holds_the_fewest_gpus_comes_first() -> None:
    queue = [
        waiting("a", "h", tenant="a"),
        waiting("b", "h", tenant="b", queue_time=NOON + SECOND),
        waiting("b other", "h", tenant="b", project="other", queue_time=NOON + 2 * SECOND),
    ]
    shares = {("a", "elsewhere"): Share(gpu_count=3), ("b", "default"): Share(gpu_count=1)}

    assert ids(queue, shares, 3 * SECOND) == ["b other", "b", "a"]


def test_a_flood_of_short_jobs_gets_every_other_turn() -> None:
    queue = [waiting(f"a{n}", "h", tenant="a", queue_time=NOON + n * SECOND) for n in range(9)]
    queue += [waiting("b", "h", tenant="b", queue_time=NOON + 60 * SECOND)]
    # What a had is over already, and it queued first.
    shares = {("a", "default"): Share(turn_time=NOON + 90 * SECOND)}

    assert ids(queue, shares, 95 * SECOND)[0] == "b"


def test_many_projects_are_no_more_turns() -> None:
    queue = [waiting(f"a{n}", "h", tenant="a", project=f"p{n}") for n in range(5)]
    queue += [waiting("b", "h", tenant="b", queue_time=NOON + SECOND)]

    assert ids(queue, {}, 2 * SECOND)[:2] == ["a0", "b"]


def test_a_job_that_gets_nothing_has_had_no_turn() -> None:
    queue = [
        waiting("large", "h", tenant="a", gpu_count=8),
        waiting("small", "l", tenant="a", queue_time=NOON + SECOND),
        waiting("b", "l", tenant="b", queue_time=NOON + 2 * SECOND),
    ]
    known = {"h": a_tier("h", 4), "l": a_tier("l", 1)}

    found = next_placements(queue, known, now=NOON + 3 * SECOND, shares={}, funding={})

    assert [one.job.job_id for one in found.placements] == ["small"]


def test_a_lower_priority_is_made_up_for_by_waiting() -> None:
    queue = [
        waiting("old", "h", priority=-1),
        waiting("new", "h", priority=1, queue_time=NOON + 2 * AGEING),
    ]

    assert ids(queue, {}, 2 * AGEING - SECOND)[0] == "new"
    assert ids(queue, {}, 2 * AGEING)[0] == "old"


def test_nobody_waits_for_ever_behind_tenants_that_are_always_new() -> None:
    shares = {("a", "default"): Share(gpu_count=3, turn_time=NOON)}

    def first(after: timedelta) -> str:
        newcomer = waiting("new", "h", tenant="new", queue_time=NOON + after - SECOND)
        return ids([waiting("a", "h", tenant="a"), newcomer], shares, after)[0]

    assert (first(3 * AGEING - SECOND), first(3 * AGEING)) == ("new", "a")


def test_a_position_counts_those_ahead_that_want_the_same_tiers() -> None:
    order = [waiting("1", "h"), waiting("2", "l"), waiting("3", "l", "h"), waiting("4", "h")]

    assert [position(name, order) for name in ("1", "2", "3", "4", "5")] == [1, 1, 3, 3, 0]


SECONDS = st.integers(0, 5000).map(lambda seconds: seconds * SECOND)
JOBS = st.lists(
    st.builds(
        lambda tenant, project, priority, age, gpus: waiting(
            "?",
            "h",
            tenant=tenant,
            project=project,
            priority=priority,
            queue_time=NOON + age,
            gpu_count=gpus,
        ),
        st.sampled_from("abc"),
        st.sampled_from("pq"),
        st.integers(-100, 100),
        SECONDS,
        st.integers(1, 8),
    ),
    max_size=25,
).map(lambda jobs: [replace(job, job_id=f"j{n}") for n, job in enumerate(jobs)])
SHARES = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.sampled_from("pqr")),
    st.builds(
        lambda count, age: Share(gpu_count=count, turn_time=NOON + age),
        st.integers(0, 9),
        SECONDS,
    ),
)


@given(JOBS, SHARES)
def test_each_job_is_told_once_and_a_tenants_order_is_its_own(
    queue: list[Waiting], shares: dict[tuple[str, str], Share]
) -> None:
    now = NOON + 5000 * SECOND
    order = in_turns(queue, shares, now=now)

    assert Counter(job.job_id for job in order) == Counter(job.job_id for job in queue)
    for tenant in "abc":
        own = [job for job in queue if job.tenant == tenant]
        assert in_turns(own, shares, now=now) == [job for job in order if job.tenant == tenant]


@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 10**6))
def test_in_a_busy_queue_every_tenant_gets_its_turns(tenants: int, rounds: int, seed: int) -> None:
    served: Counter[str] = Counter()
    shares: dict[tuple[str, str], Share] = {}
    now: datetime = NOON
    for number in range(tenants * rounds):
        now += SECOND
        queue = [
            waiting(
                f"{name}{number}",
                "h",
                tenant=str(name),
                priority=(seed >> name) % 100,
                queue_time=NOON - (seed >> name) % 997 * SECOND,
            )
            for name in range(tenants)
        ]
        job = next(iter(Turns(queue, shares, now=now)))
        served[job.tenant] += 1
        shares[job.tenant, "default"] = Share(turn_time=now)

    assert set(served.values()) == {rounds}
