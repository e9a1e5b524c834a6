"""Why a run ended, from what was said and how the process went."""

from __future__ import annotations

import pytest

from lehr.training.ends import PLATFORM_ENDS, STOPPED_ENDS, RunEnd
from lehr.training.reports import DoneReport
from services.trainer_runner.agent.leases import Ending
from services.trainer_runner.agent.verdict import Exit, ending_of

RESULTS = [RunEnd.COMPLETED, RunEnd.EARLY_STOPPED]


@pytest.mark.parametrize("end", RESULTS)
def test_a_result_counts_only_with_its_final_checkpoint(end: RunEnd) -> None:
    done = DoneReport(end=end, message="well")

    assert ending_of(Exit(code=0, done=done, has_final=True)) == Ending(end=end, message="well")
    assert ending_of(Exit(code=0, done=done)).end is RunEnd.PLATFORM_FAULT


@pytest.mark.parametrize("end", sorted(PLATFORM_ENDS | {RunEnd.NO_CAPACITY}))
def test_a_trainer_cannot_claim_that_the_platform_took_its_gpus(end: RunEnd) -> None:
    found = ending_of(Exit(code=0, done=DoneReport(end=end)))

    assert found.end is RunEnd.PLATFORM_FAULT


@pytest.mark.parametrize("reason", sorted(STOPPED_ENDS))
def test_a_trainer_that_was_asked_ends_with_the_reason_of_asking(reason: RunEnd) -> None:
    done = DoneReport(end=reason)
    other = DoneReport(end=RunEnd.USER_STOPPED)

    assert ending_of(Exit(code=0, done=done, stop_reason=reason)).end is reason
    assert ending_of(Exit(code=0, done=other, stop_reason=reason)).end is reason
    assert ending_of(Exit(code=-9, stop_reason=reason)).end is reason


def test_a_run_that_completes_although_it_was_asked_to_stop_is_complete() -> None:
    done = DoneReport(end=RunEnd.COMPLETED)
    exited = Exit(code=0, done=done, stop_reason=RunEnd.USER_STOPPED, has_final=True)

    assert ending_of(exited).end is RunEnd.COMPLETED


def test_a_mistake_of_the_user_is_believed() -> None:
    done = DoneReport(end=RunEnd.USER_ERROR, message="no rows")

    assert ending_of(Exit(code=0, done=done)).message == "no rows"


def test_memory_that_ran_out_is_told_apart_from_other_deaths() -> None:
    assert ending_of(Exit(code=-9, is_out_of_memory=True)).end is RunEnd.OUT_OF_MEMORY
    assert ending_of(Exit(code=1, is_out_of_memory=True)).end is RunEnd.OUT_OF_MEMORY
    assert ending_of(Exit(code=-9)).end is RunEnd.PLATFORM_FAULT


@pytest.mark.parametrize(
    ("code", "words"),
    [(1, "exited with status 1"), (-11, "SIGSEGV"), (-9, "SIGKILL"), (-99, "signal 99")],
)
def test_a_death_without_a_word_says_how(code: int, words: str) -> None:
    found = ending_of(Exit(code=code))

    assert found.end is RunEnd.PLATFORM_FAULT
    assert words in found.message


def test_what_we_killed_it_for_is_the_reason() -> None:
    stalled = Ending(end=RunEnd.PLATFORM_FAULT, message="did not move")

    assert ending_of(Exit(code=-9, killed_for=stalled)) == stalled


def test_a_stop_before_the_first_batch_says_so() -> None:
    found = ending_of(Exit(code=-9, stop_reason=RunEnd.USER_STOPPED, has_begun=False))

    assert "before it had begun to compute" in found.message
