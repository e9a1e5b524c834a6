"""Hearing a stop without ever waiting for one."""

from __future__ import annotations

import os
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
