"""Keeping one part alive: start, probe, restart after a pause, stop."""

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from lehr.errors import PlatformError
from lehr.logs import get_logger
from lehr.stack.part import Part, PartState, PartStuck
from lehr.stack.processes import (
    ProcessMark,
    exited,
    kill_group,
    send,
    send_family,
    spawn,
)

BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses before the restarts of a part that keeps dying; the last one for ever."""

STABLE_SECONDS = 30.0
"""A part that was ready for so long starts again at the first pause."""

SILENT_SECONDS = 120.0
"""A living part whose probe gets no answer at all for so long is started anew.

One that answers that it cannot serve is left alone: it may wait for others, and its work would be
lost.
"""

_PROBE_TIMEOUT_SECONDS = 5.0
_PROBE_EVERY_SECONDS = 5.0
_PROBE_SOON_SECONDS = 0.1

_log = get_logger()


class Keeper:
    """Keeps one part alive until it is told to stop it; never gives up."""

    def __init__(
        self,
        part: Part,
        *,
        log: Path,
        changed: Callable[[], None],
        backoff_seconds: Sequence[float] = BACKOFF_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self.part = part
        self.state = PartState.DOWN
        self.since = datetime.now(UTC)
        self.restart_count = 0
        self.failure = ""
        """Why the part is not ready, in words; empty when it is."""
        self._path = log
        self._changed = changed
        self._backoff_seconds = backoff_seconds
        self._silent_seconds = silent_seconds
        self.mark: ProcessMark | None = None
        """The living process, told from any later one."""
        self._process: subprocess.Popen[bytes] | None = None
        self._is_paused = False
        self._unwanted = asyncio.Event()
        self._unwanted.set()
        self._probe_now = asyncio.Event()
        self._stuck = asyncio.Event()
        self._crash_count = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The living process."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Want the part; returns at once, and does nothing if it is wanted already."""
        self._unwanted.clear()
        if self._task is None:
            self._move(PartState.STARTING, "has not been started yet")
            self._task = asyncio.create_task(self._keep(), name=f"keep {self.part.name}")

    async def stop(self) -> None:
        """End the process cleanly, or by force when it takes too long; it is not restarted."""
        self._unwanted.set()
        if self._task is not None:
            await self._task
            self._task = None

    def kill(self) -> None:
        """Kill the process without warning; it is restarted like after any crash."""
        if self._process is not None:
            # Told at once, so that nobody takes the dead process for the next one.
            self._move(PartState.RESTARTING, "killed on request")
            send(self._process.pid, signal.SIGKILL)

    def pause(self) -> None:
        """Freeze the process and all that it started."""
        if self._process is not None:
            self._is_paused = True
            self._move(PartState.UNREADY, "paused on request")
            send_family(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on."""
        if self._process is not None:
            self._is_paused = False
            send_family(self._process.pid, signal.SIGCONT)
            self._probe_now.set()

    async def _keep(self) -> None:
        while not self._unwanted.is_set():
            began = time.monotonic()
            await self._live()
            if self._unwanted.is_set():
                break
            self.restart_count += 1
            stable = time.monotonic() - began > STABLE_SECONDS
            self._crash_count = 0 if stable else self._crash_count
            last = len(self._backoff_seconds) - 1
            pause = self._backoff_seconds[min(self._crash_count, last)]
            self._crash_count += 1
            self._move(PartState.RESTARTING, self.failure)
            _log.warning(
                "part_died", part=self.part.name, failure=self.failure, pause_seconds=pause
            )
            await _wait(self._unwanted, pause)
        self._crash_count = 0
        self._move(PartState.DOWN)

    async def _live(self) -> None:
        """One life of the process, from its start to its end."""
        try:
            if self.part.prepare is not None:
                await asyncio.to_thread(self.part.prepare)
            if self._unwanted.is_set():
                return
            self._process = process = spawn(self.part, self._path)
        except (OSError, subprocess.SubprocessError, PlatformError) as error:
            self.failure = f"cannot be started: {error}"
            return
        self.mark = ProcessMark.of(process.pid)
        self._move(PartState.STARTING, "has not answered yet")
        self._stuck.clear()
        end = asyncio.create_task(exited(process))
        probes = asyncio.create_task(self._probe(), name=f"probe {self.part.name}")
        others = {asyncio.create_task(event.wait()) for event in (self._unwanted, self._stuck)}
        await asyncio.wait({end, *others}, return_when=asyncio.FIRST_COMPLETED)
        for task in (probes, *others):
            task.cancel()
        if not end.done():
            await self._end(process, end)
        # The dead leader still keeps its number, so the group cannot be somebody else's.
        kill_group(process.pid)
        code = process.wait()
        self._process, self.mark, self._is_paused = None, None, False
        if not self._stuck.is_set():
            self.failure = f"ended with {_ending(code)}"

    async def _end(self, process: subprocess.Popen[bytes], end: asyncio.Task[None]) -> None:
        send(process.pid, self.part.stop_signal)
        send_family(process.pid, signal.SIGCONT)
        ended, _ = await asyncio.wait({end}, timeout=self.part.stop_seconds)
        if not ended:
            _log.warning("part_killed", part=self.part.name, after_seconds=self.part.stop_seconds)
            send_family(process.pid, signal.SIGKILL)
            await end

    async def _probe(self) -> None:
        heard = time.monotonic()
        while not self._stuck.is_set():
            ready, why = False, ""
            try:
                async with asyncio.timeout(_PROBE_TIMEOUT_SECONDS):
                    await self.part.probe()
            except Exception as error:  # whatever a probe raises means "not now"
                why = f"{type(error).__name__}: {error}"
                answered = not isinstance(error, OSError)
                is_stuck = isinstance(error, PartStuck)
            else:
                ready, answered, is_stuck = True, True, False
            if answered or self._is_paused:
                heard = time.monotonic()
            if is_stuck or time.monotonic() - heard > self._silent_seconds:
                self._give_up(why)
            # An answer given before a kill or a pause says nothing about now.
            if self.state is not PartState.RESTARTING and not self._is_paused:
                self._judge(ready=ready, why=why)
            ready = self.state is PartState.READY
            await _wait(self._probe_now, _PROBE_EVERY_SECONDS if ready else _PROBE_SOON_SECONDS)
            self._probe_now.clear()

    def _give_up(self, why: str) -> None:
        """End this life of a part that does not serve and does not die."""
        _log.error("part_stuck", part=self.part.name, pid=self.pid, failure=why)
        self._move(PartState.RESTARTING, f"started anew: {why}")
        self._stuck.set()

    def _judge(self, *, ready: bool, why: str) -> None:
        if ready and self.state is not PartState.READY:
            _log.info("part_ready", part=self.part.name, pid=self.pid)
            self._move(PartState.READY)
        elif not ready and self.state is PartState.READY:
            _log.warning("part_unready", part=self.part.name, failure=why)
            self._move(PartState.UNREADY, why)
        elif not ready:
            self.failure = why

    def _move(self, state: PartState, failure: str = "") -> None:
        if state is not self.state:
            self.since = datetime.now(UTC)
        self.state, self.failure = state, failure
        self._changed()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most so long."""
    # Not asyncio.wait_for: until Python 3.12 it loses a cancellation that comes with the event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
