"""Who gets GPUs next."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.training.ends import RunEnd
from services.scheduler.domain.placement import (
    Decision,
    Funding,
    Tier,
    next_placements,
    why_waiting,
)
from services.scheduler.domain.turns import Turns, Waiting
from tests.support.scheduler import NOON, SECOND, a_tier, waiting

ZERO = timedelta(0)


def tiers(*known: Tier) -> dict[str, Tier]:
    return {one.tier: one for one in known}


def decided(
    queue: list[Waiting], known: dict[str, Tier], *, after: int = 0, **more: Any
) -> Decision:
    values = {"shares": {}, "funding": {}} | more
    return next_placements(queue, known, now=NOON + after * SECOND, **values)


def placed(
    queue: list[Waiting], known: dict[str, Tier], *, after: int = 0, **more: Any
) -> list[Any]:
    found = decided(queue, known, after=after, **more).placements
    return [(one.job.job_id, *one.tiers) for one in found]


def test_waiting_for_one_tier_does_not_block_others() -> None:
    queue = [
        waiting("j1", "h", queue_time=NOON),
        waiting("j2", "l", queue_time=NOON + 1 * SECOND),
        waiting("j3", "h", queue_time=NOON + 2 * SECOND),
        waiting("j4", "l", queue_time=NOON + 3 * SECOND),
        waiting("j5", "l", queue_time=NOON + 4 * SECOND),
    ]

    assert placed(queue, tiers(a_tier("h", 0), a_tier("l", 2))) == [("j2", "l"), ("j4", "l")]
    assert placed(queue, tiers(a_tier("h", 1), a_tier("l", 0))) == [("j1", "h")]


def test_higher_priority_comes_first_then_the_older() -> None:
    queue = [
        waiting("young", "h", queue_time=NOON + SECOND),
        waiting("old", "h"),
        waiting("urgent", "h", priority=5, queue_time=NOON + 9 * SECOND),
    ]

    assert [job for job, _ in placed(queue, tiers(a_tier("h", 2)))] == ["urgent", "old"]


def test_a_large_job_is_not_starved_by_small_ones() -> None:
    queue = [
        waiting("large", "h", gpu_count=8),
        waiting("small", "h", queue_time=NOON + SECOND),
    ]

    assert placed(queue, tiers(a_tier("h", 7))) == []


def test_gpus_of_two_nodes_do_not_add_up() -> None:
    assert placed([waiting("gang", "h", gpu_count=6)], tiers(a_tier("h", 4, 4))) == []


def test_a_job_that_no_node_could_run_blocks_nobody() -> None:
    queue = [
        waiting("impossible", "h", gpu_count=16),
        waiting("possible", "h", queue_time=NOON + SECOND),
    ]

    assert placed(queue, tiers(a_tier("h", 8))) == [("possible", "h")]


def test_a_job_whose_next_try_is_not_due_keeps_nothing() -> None:
    queue = [
        waiting("faulty", "h", not_before=NOON + 10 * SECOND),
        waiting("next", "h", queue_time=NOON + SECOND),
    ]

    assert placed(queue, tiers(a_tier("h", 1))) == [("next", "h")]


@pytest.mark.parametrize(
    ("after", "found"), [(14, []), (15, [("j", "h", "l")]), (29, [("j", "h", "l")])]
)
def test_a_backup_is_tried_after_its_wait(after: int, found: list) -> None:  # type: ignore[type-arg]
    known = tiers(a_tier("h", 0), a_tier("l", 1), a_tier("s", 1))

    assert placed([waiting("j", "h", "l", "s")], known, after=after) == found


def test_each_further_backup_waits_once_more() -> None:
    known = tiers(a_tier("h", 0), a_tier("l", 0), a_tier("s", 1))

    assert placed([waiting("j", "h", "l", "s")], known, after=30) == [("j", "h", "l", "s")]


def test_backups_without_a_wait_are_tried_at_once() -> None:
    known = tiers(a_tier("h"), a_tier("l", 1))

    assert placed([waiting("j", "h", "l", backup_after=ZERO)], known) == [("j", "l")]


def test_a_tier_that_somebody_before_waits_for_is_not_taken_as_a_backup() -> None:
    queue = [
        waiting("first", "l", gpu_count=8),
        waiting("second", "h", "l", queue_time=NOON + SECOND, backup_after=ZERO),
    ]

    assert placed(queue, tiers(a_tier("h", 0), a_tier("l", 4))) == []


def test_one_waiting_job_says_what_is_free() -> None:
    told = why_waiting(waiting("j", "h100-80gb"), tiers(a_tier("h100-80gb", 0, each=1)), now=NOON)

    assert told == "waits for h100-80gb: 0 of 1 free"


def test_a_job_that_can_never_run_says_so() -> None:
    told = why_waiting(waiting("j", "h", gpu_count=12), tiers(a_tier("h", 8)), now=NOON)

    assert (
        told == "cannot run at present: it needs 12 GPUs on one node, and no node has more than 8 h"
    )


PAID = Funding(tiers={"h": SECOND, "l": SECOND}, deadline=None)
PAID_ON_L = Funding(tiers={"h": ZERO, "l": SECOND}, deadline=None)
FREE_ONE = tiers(a_tier("h", 1), a_tier("l", 1))


@pytest.mark.parametrize(
    ("funding", "known", "end"),
    [
        (Funding(tiers={"h": ZERO, "l": ZERO}, deadline=None), FREE_ONE, RunEnd.BUDGET_EXHAUSTED),
        (Funding(tiers={"h": SECOND}, deadline=ZERO), FREE_ONE, RunEnd.DEADLINE_REACHED),
        (PAID_ON_L, FREE_ONE, None),
        (PAID_ON_L, tiers(a_tier("h", 0)), RunEnd.BUDGET_EXHAUSTED),
        (PAID_ON_L, tiers(a_tier("h", 0), a_tier("l")), RunEnd.BUDGET_EXHAUSTED),
        (PAID_ON_L, tiers(a_tier("h"), a_tier("l")), None),
        (PAID_ON_L, {}, None),
    ],
    ids=["nothing", "no time", "a backup", "unknown", "no node", "no node at all", "no tiers"],
)
def test_a_job_ends_when_no_tier_that_could_run_it_is_paid_for(
    funding: Funding, known: dict[str, Tier], end: RunEnd | None
) -> None:
    assert funding.end(waiting("j", "h", "l"), known) is end


def test_a_tier_that_is_not_paid_for_is_neither_taken_nor_kept_from_others() -> None:
    queue = [
        waiting("poor", "h", "l", backup_after=ZERO),
        waiting("rich", "h", queue_time=NOON + SECOND),
    ]
    known = tiers(a_tier("h", 1), a_tier("l", 0))

    found = decided(queue, known, funding={"poor": PAID_ON_L, "rich": PAID})

    assert [(one.job.job_id, one.tiers) for one in found.placements] == [("rich", ("h",))]
    assert found.unasked == []


def test_only_jobs_that_change_what_others_get_are_asked_for_their_money() -> None:
    queue = [
        waiting("first", "h"),
        waiting("second", "h", queue_time=NOON + SECOND),
        waiting("third", "h", queue_time=NOON + 2 * SECOND),
        waiting("nowhere", "x", queue_time=NOON + 3 * SECOND),
    ]

    found = decided(queue, tiers(a_tier("h", 1)), funding={"first": PAID})

    assert [job.job_id for job in found.unasked] == ["second"]


def test_only_funded_tiers_are_asked_for() -> None:
    assert Funding(tiers={"h": ZERO, "l": SECOND}, deadline=None).of(["h", "l", "x"]) == [
        ("l", SECOND)
    ]


JOBS = st.builds(
    lambda number, priority, age, gpus, wanted: waiting(
        f"j{number}",
        *wanted,
        priority=priority,
        queue_time=NOON + age * SECOND,
        gpu_count=gpus,
        backup_after=ZERO,
    ),
    st.integers(0, 10_000),
    st.integers(-2, 2),
    st.integers(0, 5),
    st.integers(1, 9),
    st.permutations(["h", "l", "s"]).flatmap(lambda names: st.sampled_from([names[:1], names])),
)
FREE = st.lists(st.integers(0, 8), max_size=3)


@given(st.lists(JOBS, max_size=12, unique_by=lambda job: job.job_id), FREE, FREE, FREE)
def test_no_gpu_is_promised_twice_and_the_first_that_fits_is_served(queue, h, l, s) -> None:  # type: ignore[no-untyped-def]  # noqa: E741
    known = tiers(a_tier("h", *h), a_tier("l", *l), a_tier("s", *s))

    found = decided(queue, known).placements

    assert sum(one.job.gpu_count for one in found) <= sum((*h, *l, *s))
    assert len({one.job.job_id for one in found}) == len(found)
    order = list(Turns(queue, {}, now=NOON))
    # The first of all, if it fits now, is served, for nobody can keep a tier from it.
    if order and any(
        max(known[tier].free_per_node, default=0) >= order[0].gpu_count for tier in order[0].tiers
    ):
        assert found[0].job == order[0]
