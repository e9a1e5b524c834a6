"""What was published and not confirmed is said again, with patience, and only then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.trainer_runner.agent.reporter import STALL_SECONDS, Channel


def a_channel(*, published: int, confirmed: int = 0) -> Channel:
    channel = Channel("RUNS")
    channel.published = published
    channel.confirm(confirmed, now=0.0)
    return channel


def test_a_watermark_that_rests_for_long_is_a_loss() -> None:
    channel = a_channel(published=9, confirmed=4)

    assert not channel.begin_again_if_lost(now=STALL_SECONDS - 0.1)
    assert channel.begin_again_if_lost(now=STALL_SECONDS)
    assert (channel.published, channel.round) == (4, 1)


def test_a_watermark_that_moves_is_no_loss() -> None:
    channel = a_channel(published=9, confirmed=4)

    channel.confirm(5, now=STALL_SECONDS - 1)

    assert not channel.begin_again_if_lost(now=STALL_SECONDS + 1)


def test_silence_of_those_who_are_asked_is_no_loss() -> None:
    channel = a_channel(published=9, confirmed=4)

    channel.pause()

    assert not channel.begin_again_if_lost(now=1e9)


def test_what_is_confirmed_whole_is_never_said_again() -> None:
    channel = a_channel(published=9, confirmed=9)

    assert not channel.begin_again_if_lost(now=1e9)


def test_patience_grows_with_every_round() -> None:
    channel = a_channel(published=9)
    assert channel.begin_again_if_lost(now=STALL_SECONDS)
    channel.published = 9
    channel.confirm(0, now=100.0)

    assert not channel.begin_again_if_lost(now=100.0 + STALL_SECONDS)
    assert channel.begin_again_if_lost(now=100.0 + 2 * STALL_SECONDS)


@given(st.lists(st.integers(min_value=0, max_value=50), min_size=1))
def test_what_was_confirmed_once_stays_confirmed(marks: list[int]) -> None:
    channel = a_channel(published=50)

    for number, mark in enumerate(marks):
        channel.confirm(mark, now=float(number))

    assert channel.confirmed == max(marks)
    assert channel.published == 50
