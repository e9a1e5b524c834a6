"""How much of a key may be in progress at once."""

from contextlib import ExitStack

import pytest

from services.gateway.calls import Limits, TooManyCalls, streaming_paths
from services.gateway.proxy import ROUTES


def test_a_key_at_its_limit_is_told_which_and_others_are_not_held_up() -> None:
    limits = Limits(calls_max=2, streams_max=1)
    with ExitStack() as open_ones:
        for _ in range(2):
            open_ones.enter_context(limits.one("key_1", is_stream=False))
        open_ones.enter_context(limits.one("key_1", is_stream=True))
        open_ones.enter_context(limits.one("key_2", is_stream=False))

        with pytest.raises(TooManyCalls, match="2 calls in progress") as calls:
            open_ones.enter_context(limits.one("key_1", is_stream=False))
        with pytest.raises(TooManyCalls, match="1 streams in progress"):
            open_ones.enter_context(limits.one("key_1", is_stream=True))

    assert calls.value.retryable
    assert calls.value.facts == {"limit": "2", "kind": "calls"}


def test_what_is_over_counts_no_more_however_it_ended() -> None:
    limits = Limits(calls_max=1, streams_max=1)
    for _ in range(3):
        with pytest.raises(KeyError), limits.one("key_1", is_stream=True):
            raise KeyError
    with limits.one("key_1", is_stream=True):
        pass


def test_methods_that_answer_without_end_are_known() -> None:
    assert {path.rpartition("/")[2] for path in streaming_paths(ROUTES)} == {
        "WatchEvents",
        "WatchJob",
        "WatchLogs",
        "WatchMetrics",
    }
