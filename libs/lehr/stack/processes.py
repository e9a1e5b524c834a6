"""Processes: who they are, starting them so that none outlives its parent, and ending them."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from lehr.stack.part import Part

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ON_LINUX = sys.platform == "linux"
_COMMAND_TRIES = 50
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# Loaded here, for nothing may be loaded between fork and exec.
_prctl = ctypes.CDLL(None, use_errno=True).prctl if _ON_LINUX else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMark:
    """A process that can be told from a later one with the same number."""

    pid: int
    """Its number, which the kernel gives away again."""

    start: str
    """When it started: boot and clock tick, which no other process with this number shares."""

    command: tuple[str, ...]
    """Its arguments when it was marked."""

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Mark a living process; None if there is none."""
        try:
            command = _command(pid)
            start = _start(pid)
        except (psutil.Error, OSError):
            return None
        return cls(pid=pid, start=start, command=command)

    def is_alive(self) -> bool:
        """Say whether this very process lives; a dead one that nobody collected does not."""
        return self == ProcessMark.of(self.pid)

    def end(self) -> None:
        """Ask this very process to end, or nobody."""
        self.send(signal.SIGTERM)

    def kill(self) -> None:
        """Kill this very process and its group, or nobody."""
        if self.is_alive():
            kill_group(self.pid)

    def send(self, sent: signal.Signals) -> None:
        """Send a signal to this very process, or to nobody."""
        if self.is_alive():
            send(self.pid, sent)


def spawn(part: Part, log: Path) -> subprocess.Popen[bytes]:
    """Start a part in a group of its own; it dies with this process.

    Must be called from the main thread: the kernel ends the part with the thread that started it.

    Raises:
        OSError: the program cannot be started.
    """
    user, group, extra = None, None, None
    if part.user is not None:
        user, group, extra = part.user.uid, part.user.gid, list[int]()
    with log.open("ab") as output:
        return subprocess.Popen(
            part.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=part.folder,
            env=dict(part.environment),
            start_new_session=True,
            user=user,
            group=group,
            extra_groups=extra,
            preexec_fn=die_with_parent(part.death_signal),  # noqa: PLW1509 - see the function
        )


def die_with_parent(sent: signal.Signals = signal.SIGKILL) -> Callable[[], None] | None:
    """Return what a child runs before its program, so that it gets a signal when we die.

    It takes no lock and imports nothing, so that it is safe between fork and exec. Other systems
    than Linux have no such signal; there a killed supervisor leaves its children to the next start.
    """
    if _prctl is None:
        return None
    prctl, parent, number = _prctl, os.getpid(), int(sent)

    def ask_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)

    return ask_kernel


async def exited(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a child, without collecting it."""
    try:
        descriptor = os.pidfd_open(process.pid) if _ON_LINUX else -1
    except OSError:
        descriptor = -1
    if descriptor < 0:
        while process.poll() is None:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.1)
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(descriptor, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def send(pid: int, sent: signal.Signals) -> None:
    """Send a signal to one process; nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sent)


def kill_group(pid: int) -> None:
    """Kill a part with those that it started in its group; nothing if they are gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def send_family(pid: int, sent: signal.Signals) -> None:
    """Send a signal to a process and to all below it."""
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(pid).children(recursive=True)
        for member in [pid, *(child.pid for child in family)]:
            send(member, sent)


def adopt_orphans() -> None:
    """Make this process the parent of grandchildren whose parent dies, so that none is lost."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def dead_children() -> set[int]:
    """Return the children that ended and were not collected yet."""
    found = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.status() == psutil.STATUS_ZOMBIE:
                found.add(child.pid)
    return found


def collect(children: set[int]) -> None:
    """Collect dead children, so that their numbers are free again."""
    for pid in children:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def kill_descendants(*, within: float) -> list[int]:
    """Kill every process below this one; return those that live on."""
    deadline = time.monotonic() + within
    while True:
        left = [child for child in psutil.Process().children(recursive=True) if _lives(child)]
        if not left or time.monotonic() > deadline:
            return [child.pid for child in left]
        for child in left:
            with contextlib.suppress(psutil.Error):
                child.kill()
        collect(dead_children())
        time.sleep(0.02)


def memory_bytes(pid: int, *, family: bool = True) -> int:
    """Return the memory of a process, with those below it; what several share counts once."""
    try:
        process = psutil.Process(pid)
        members = [process, *(process.children(recursive=True) if family else [])]
    except psutil.Error:
        return 0
    return sum(_memory_bytes(member) for member in members)


def _memory_bytes(process: psutil.Process) -> int:
    try:
        if _ON_LINUX:
            return int(process.memory_full_info().pss)
        return int(process.memory_info().rss)
    except psutil.AccessDenied:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _command(pid: int) -> tuple[str, ...]:
    """Return the arguments of a process; raises for one that is dead and not collected."""
    for _ in range(_COMMAND_TRIES):
        command = tuple(psutil.Process(pid).cmdline())
        if command:
            return command
        # For an instant after its start, and before its end, a program has no arguments.
        time.sleep(0.002)
    raise psutil.NoSuchProcess(pid)


def _start(pid: int) -> str:
    if not _ON_LINUX:
        return f"{psutil.Process(pid).create_time():.0f}"
    # The name in parentheses may hold spaces; field 22 of the line is the 20th after it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{_BOOT_ID.read_text().strip()}:{fields[19]}"
