"""Which checkpoints wait on a node, decided for every mix of kinds."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from services.trainer_runner.agent.staging import STAGED_MAX, Staged, admit

KINDS = ("ordinary", "best", "final", "last")


def a_staged(step: int, kind: str) -> Staged:
    return Staged(
        path=Path(f"checkpoint-{step}"),
        step=step,
        is_ordinary=kind in {"ordinary", "last"},
        is_best=kind == "best",
        is_final=kind == "final",
        is_resumable=True,
        is_last=kind == "last",
        eval_loss="",
        snapshot=float(step),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_room_for_two(kind: str) -> None:
    assert admit([], a_staged(2, kind), uploading_count=1).is_accepted
    assert admit([a_staged(1, "best")], a_staged(2, kind), uploading_count=0).is_accepted


@pytest.mark.parametrize("waiting", list(itertools.product(KINDS, repeat=2)))
def test_an_ordinary_one_never_takes_the_place_of_another(waiting: tuple[str, str]) -> None:
    staged = [a_staged(step, kind) for step, kind in enumerate(waiting, 1)]

    verdict = admit(staged, a_staged(9, "ordinary"), uploading_count=0)

    assert (verdict.is_accepted, verdict.dropped) == (False, None)


@pytest.mark.parametrize("kind", ["best", "final", "last"])
@pytest.mark.parametrize("waiting", list(itertools.product(KINDS, repeat=2)))
def test_one_that_matters_is_always_kept(waiting: tuple[str, str], kind: str) -> None:
    staged = [a_staged(step, each) for step, each in enumerate(waiting, 1)]

    verdict = admit(staged, a_staged(9, kind), uploading_count=0)

    assert verdict.is_accepted
    assert verdict.dropped is None or not verdict.dropped.must_stay
    assert verdict.dropped is None or not verdict.dropped.is_best or kind == "best"


def test_the_oldest_ordinary_one_makes_room() -> None:
    staged = [a_staged(1, "best"), a_staged(2, "ordinary"), a_staged(3, "ordinary")]

    assert admit(staged, a_staged(4, "best"), uploading_count=0).dropped == staged[1]


def test_a_best_that_is_outdone_makes_room_for_the_next_only_if_no_ordinary_one_can() -> None:
    staged = [a_staged(1, "best")]

    verdict = admit(staged, a_staged(4, "best"), uploading_count=STAGED_MAX - 1)

    assert verdict.dropped == staged[0]


def test_what_is_being_uploaded_is_counted_and_not_dropped() -> None:
    verdict = admit([a_staged(1, "final")], a_staged(2, "best"), uploading_count=1)

    assert (verdict.is_accepted, verdict.dropped) == (True, None)
