"""The trainer's ends of the two pipes to its agent: reports go out, a stop comes in."""

from __future__ import annotations

import json
import math
import os
import select
import time
from dataclasses import dataclass, replace
from typing import Protocol

from lehr.training.ends import STOPPED_ENDS, RunEnd
from lehr.training.reports import Report, encode

_CHUNK = 65536


class Reporter(Protocol):
    """Takes the facts of a run."""

    def __call__(self, report: Report) -> None:
        """Pass on one report; it may block until there is room."""
        ...


class ReportPipe:
    """Writes each report as one line."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __call__(self, report: Report) -> None:
        line = memoryview(encode(report))
        while line:
            line = line[os.write(self._fd, line) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A stop as the agent asks for it."""

    end: RunEnd
    until: float = -math.inf
    """CLOCK_MONOTONIC seconds until which the step that is being computed may still be finished."""


class StopFlag:
    """Tells at any time, without blocking, whether the agent has asked to stop."""

    def __init__(self, fd: int | None = None) -> None:
        """Listen to ``fd``; None never stops."""
        self._fd = fd
        self._unread = b""
        self._stop: Stop | None = None

    def asked(self) -> RunEnd | None:
        """Return the reason of the first stop that was asked for, or None."""
        stop = self._heard()
        return stop.end if stop is not None else None

    def asked_within_step(self) -> RunEnd | None:
        """Return the reason of a stop for which a step that is not finished is dropped."""
        stop = self._heard()
        return stop.end if stop is not None and time.monotonic() >= stop.until else None

    def _heard(self) -> Stop | None:
        while self._fd is not None and _is_readable(self._fd):
            received = os.read(self._fd, _CHUNK)
            if not received:
                # The agent is gone; the kernel ends this process with it.
                self._fd = None
            *lines, self._unread = (self._unread + received).split(b"\n")
            for stop in filter(None, map(_stop_in, lines)):
                # The first reason stays; a later stop may leave less time.
                first = self._stop or stop
                self._stop = replace(first, until=min(first.until, stop.until))
        return self._stop

    def stop_listening(self) -> None:
        """Ignore whatever comes from now on: how the scripted trainer feigns being deaf."""
        self._fd = None


def _is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def _stop_in(line: bytes) -> Stop | None:
    """Return what a stop command says; other commands are for trainers to come."""
    try:
        command = json.loads(line)
        if command["kind"] != "stop":
            return None
        reason = RunEnd(command["reason"])
        until = float(command.get("until", -math.inf))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Stop(end=reason if reason in STOPPED_ENDS else RunEnd.USER_STOPPED, until=until)
