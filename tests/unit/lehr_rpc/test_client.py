"""The deadline that a call gets."""

import pytest

from lehr.rpc.client import allowed_seconds


@pytest.mark.parametrize(
    ("wanted", "left", "allowed"),
    [
        (None, None, 10.0),
        (3.0, None, 3.0),
        (60.0, None, 60.0),
        (None, 4.0, 3.6),
        (1.0, 4.0, 1.0),
        (30.0, 20.0, 18.0),
        (None, -1.0, 0.0),
    ],
)
def test_a_call_gets_what_it_asks_for_within_what_is_left(
    wanted: float | None, left: float | None, allowed: float
) -> None:
    assert allowed_seconds(wanted, default=10.0, left=left) == pytest.approx(allowed)
