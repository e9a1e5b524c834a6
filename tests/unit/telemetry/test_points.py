"""Points: exact as text, one that counts a key, pages that end with a whole step."""

import math
import struct
from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.telemetry.domain.series import (
    Point,
    Run,
    is_obsolete,
    settle,
    value_to_text,
    whole_steps,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def a_run(epoch: int, resume_step: int = 0) -> Run:
    return Run(
        run_id=f"run_{epoch}", tenant="acme", job_id="job", epoch=epoch, resume_step=resume_step
    )


def a_point(step: int, *, epoch: int = 1, sequence: int = 1, value: float = 0.0) -> Point:
    return Point(
        job_id="job",
        run_id=f"run_{epoch}",
        epoch=epoch,
        step=step,
        name="loss",
        value=value,
        time=NOON,
        sequence=sequence,
    )


@given(st.floats())
def test_every_double_comes_back_as_it_was(value: float) -> None:
    text = value_to_text(value)
    back = float(text)

    same = struct.pack("d", back) == struct.pack("d", value)
    assert same or (math.isnan(back) and math.isnan(value))
    assert text in ("NaN", "Infinity", "-Infinity") or math.isfinite(value)


@pytest.mark.parametrize(
    ("step", "epoch", "expected"),
    [(10, 1, False), (11, 1, True), (30, 2, False), (31, 2, True), (99, 3, False)],
)
def test_a_step_is_obsolete_past_the_resume_step_of_any_later_run(
    step: int, epoch: int, expected: bool
) -> None:
    runs = [a_run(1), a_run(2, resume_step=10), a_run(3, resume_step=30)]

    assert is_obsolete(step=step, epoch=epoch, runs=runs) is expected


POINTS = st.lists(
    st.builds(
        a_point,
        st.integers(0, 5),
        epoch=st.integers(1, 3),
        sequence=st.integers(1, 9),
    ),
    max_size=20,
)


@given(POINTS, st.integers(0, 5), st.integers(0, 5), st.randoms(use_true_random=False))
def test_of_each_key_at_most_one_counts_and_order_does_not_matter(
    points: list[Point], second: int, third: int, random: Random
) -> None:
    runs = [a_run(1), a_run(2, second), a_run(3, third)]
    settled = settle(points, runs)
    shuffled = list(points)
    random.shuffle(shuffled)

    counting = [point.key for point in settled if not point.is_superseded]
    assert len(counting) == len(set(counting))
    assert {(point.key, point.epoch) for point in settled} == {
        (point.key, point.epoch) for point in points
    }
    highest = {(point.key, point.epoch): point.sequence for point in settled}
    assert all(highest[point.key, point.epoch] >= point.sequence for point in points)
    shape = {(p.key, p.epoch, p.sequence, p.is_superseded) for p in settled}
    assert shape == {(p.key, p.epoch, p.sequence, p.is_superseded) for p in settle(shuffled, runs)}


def test_the_newest_epoch_counts_where_both_speak_of_a_step() -> None:
    settled = settle(
        [a_point(0, epoch=2), a_point(0, epoch=1)], [a_run(1), a_run(2, resume_step=4)]
    )

    assert {point.epoch: point.is_superseded for point in settled} == {1: True, 2: False}


@given(st.lists(st.integers(0, 6), max_size=30), st.integers(1, 8))
def test_pages_end_with_a_whole_step_and_together_are_everything(
    steps: list[int], limit: int
) -> None:
    rest = sorted(steps)
    seen: list[int] = []
    while rest:
        count, has_more = whole_steps(rest[: limit + 1], limit=limit)
        if count == 0:
            count = rest.count(rest[0])
            has_more = count < len(rest)
        page, rest = rest[:count], rest[count:]
        seen += page
        assert has_more == bool(rest)
        assert not rest or rest[0] != page[-1]

    assert seen == sorted(steps)
