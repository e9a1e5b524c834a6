"""Best: the lowest finite loss; a tie keeps the earlier step; a deleted one stays the bar."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.errors import InvalidArgument
from services.checkpoint_store.domain.best import bar_of, best_of, read_loss
from services.checkpoint_store.domain.checkpoint import Checkpoint, CheckpointState
from tests.unit.checkpoint_store.builders import a_checkpoint

LOSSES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([1.0, 1.5, -0.0, 0.0])
)


@given(st.lists(LOSSES, max_size=12), st.randoms(use_true_random=False))
def test_best_is_the_first_lowest_finite_loss_in_any_order_of_commits(
    losses: list[float], random: Random
) -> None:
    saved = [a_checkpoint(step, loss=repr(loss)) for step, loss in enumerate(losses)]
    finite = [loss for loss in losses if math.isfinite(loss)]
    expected = losses.index(min(finite)) if finite else None

    random.shuffle(saved)
    best = best_of(saved)

    assert (None if best is None else best.step) == expected


def test_a_deleted_best_stays_the_bar_and_is_not_shown() -> None:
    deleted = a_checkpoint(10, loss="1.0", state=CheckpointState.DELETED)
    later = a_checkpoint(20, loss="1.0")

    assert bar_of([deleted, later]) == deleted
    assert best_of([deleted, later]) is None
    lower = a_checkpoint(30, loss="0.9999999")
    assert best_of([deleted, later, lower]) == lower


@pytest.mark.parametrize(
    "excluded",
    [
        a_checkpoint(5, loss="0.1", is_superseded=True),
        a_checkpoint(5, loss="0.1", state=CheckpointState.UPLOADING, commit_time=None),
        a_checkpoint(5, loss="NaN"),
        a_checkpoint(5, loss="-Infinity"),
        a_checkpoint(5),
    ],
    ids=["superseded", "uploading", "nan", "minus_infinity", "not_evaluated"],
)
def test_what_does_not_count_is_never_best(excluded: Checkpoint) -> None:
    counted = a_checkpoint(10, loss="1.0")

    assert best_of([excluded, counted]) == counted
    assert best_of([excluded]) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_loss_keeps_every_digit(loss: float) -> None:
    assert read_loss(repr(loss)) == (loss, repr(loss))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (None, "")),
        ("NaN", (None, "NaN")),
        ("nan", (None, "NaN")),
        ("Infinity", (None, "Infinity")),
        ("-inf", (None, "-Infinity")),
        ("1e400", (None, "Infinity")),
        ("1e-320", (1e-320, "1e-320")),
    ],
)
def test_a_loss_that_is_not_finite_is_kept_as_text(text: str, expected: object) -> None:
    assert read_loss(text) == expected


@pytest.mark.parametrize("text", ["low", "1_0", "1,5", "1" * 65, "0x10", "\u0661"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_loss(text)

    assert refused.value.fields[0].field == "eval_loss"
