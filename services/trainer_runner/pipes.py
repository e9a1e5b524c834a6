"""The trainer's ends of the two pipes to its agent: reports go out, a stop comes in."""

from __future__ import annotations

import json
import os
import select
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


class StopFlag:
    """Tells at any time, without blocking, whether the agent has asked to stop."""

    def __init__(self, fd: int | None = None) -> None:
        """Listen to ``fd``; None never stops."""
        self._fd = fd
        self._unread = b""
        self._asked: RunEnd | None = None

    def asked(self) -> RunEnd | None:
        """Return the reason of the first stop that was asked for, or None."""
        while self._asked is None and self._fd is not None and _is_readable(self._fd):
            received = os.read(self._fd, _CHUNK)
            if not received:
                # The agent is gone; the kernel ends this process with it.
                self._fd = None
            *lines, self._unread = (self._unread + received).split(b"\n")
            self._asked = next((end for end in map(_stop_in, lines) if end is not None), None)
        return self._asked

    def stop_listening(self) -> None:
        """Ignore whatever comes from now on: how the scripted trainer feigns being deaf."""
        self._fd = None


def _is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def _stop_in(line: bytes) -> RunEnd | None:
    """Return the reason of a stop command; other commands are for trainers to come."""
    try:
        command = json.loads(line)
        if command["kind"] != "stop":
            return None
        reason = RunEnd(command["reason"])
    except (ValueError, KeyError, TypeError):
        return None
    return reason if reason in STOPPED_ENDS else RunEnd.USER_STOPPED
