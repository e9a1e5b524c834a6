"""Hearing a stop without ever waiting for one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest

from lehr.training.ends import RunEnd
from services.trainer_runner.pipes import StopFlag


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def test_silence_is_no_stop(pipe: tuple[int, int]) -> None:
    assert StopFlag(pipe[0]).asked() is None


def test_a_command_may_come_in_pieces(pipe: tuple[int, int]) -> None:
    flag = StopFlag(pipe[0])

    os.write(pipe[1], b'{"kind": "stop", "rea')
    before = flag.asked()
    os.write(pipe[1], b'son": "PREEMPTED"}\n')

    assert (before, flag.asked()) == (None, RunEnd.PREEMPTED)


def test_the_first_reason_stays(pipe: tuple[int, int]) -> None:
    flag = StopFlag(pipe[0])

    os.write(pipe[1], b'{"kind": "stop", "reason": "DEADLINE_REACHED"}\n')
    first = flag.asked()
    os.write(pipe[1], b'{"kind": "stop", "reason": "USER_STOPPED"}\n')

    assert first == flag.asked() == RunEnd.DEADLINE_REACHED


def test_a_step_that_is_paid_for_may_be_finished_and_no_longer(pipe: tuple[int, int]) -> None:
    flag = StopFlag(pipe[0])
    command = {"kind": "stop", "reason": "BUDGET_EXHAUSTED", "until": time.monotonic() + 600}

    os.write(pipe[1], json.dumps(command).encode() + b"\n")
    before = flag.asked(), flag.asked_within_step()
    os.write(pipe[1], json.dumps({**command, "until": time.monotonic()}).encode() + b"\n")

    assert before == (RunEnd.BUDGET_EXHAUSTED, None)
    assert flag.asked_within_step() == RunEnd.BUDGET_EXHAUSTED


def test_a_stop_by_somebody_else_leaves_no_more_time(pipe: tuple[int, int]) -> None:
    flag = StopFlag(pipe[0])
    command = {"kind": "stop", "reason": "BUDGET_EXHAUSTED", "until": time.monotonic() + 600}
    os.write(pipe[1], json.dumps(command).encode() + b"\n")
    assert flag.asked_within_step() is None

    os.write(pipe[1], b'{"kind": "stop", "reason": "USER_STOPPED"}\n')

    assert flag.asked_within_step() == flag.asked() == RunEnd.BUDGET_EXHAUSTED


def test_what_is_no_stop_is_passed_over(pipe: tuple[int, int]) -> None:
    flag = StopFlag(pipe[0])

    os.write(pipe[1], b'noise\n[]\n{"kind": "other"}\n{"kind": "stop", "reason": "?"}\n')

    assert flag.asked() is None


def test_an_end_that_is_no_stop_is_taken_as_the_users(pipe: tuple[int, int]) -> None:
    flag = StopFlag(pipe[0])

    os.write(pipe[1], b'{"kind": "stop", "reason": "COMPLETED"}\n')

    assert flag.asked() == RunEnd.USER_STOPPED


def test_a_closed_pipe_is_no_stop() -> None:
    reader, writer = os.pipe()
    os.close(writer)

    assert StopFlag(reader).asked() is None
    os.close(reader)
