"""Processes of leases: told from others by a mark in their environment, and ended for certain.

A process number is given away again by the kernel, so a process is its number and its start.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

LEASE_MARK = "LEHR_LEASE_ID"
"""Variable that names the lease of a trainer and of all that it starts."""

AGENT_MARK = "LEHR_AGENT_STATE"
"""Variable that names the state folder of the agent: two agents may share a machine."""

_ON_LINUX = sys.platform == "linux"
_PR_SET_CHILD_SUBREAPER = 36
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_DEAD = frozenset({"Z", "X", "x"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process that cannot be taken for a later one of the same number."""

    pid: int
    start: str
    """When it started, in the kernel's own count since boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    process: ProcessId
    parent: int
    session: int


def boot_id() -> str:
    """Return what changes with every boot of this machine."""
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return f"boot-{psutil.boot_time():.0f}"


def process_id(pid: int) -> ProcessId | None:
    """Return the living process of a number; None if there is none."""
    seen = _look(pid)
    return seen.process if seen else None


def is_alive(process: ProcessId) -> bool:
    """Say whether this very process lives; one that nobody has collected yet does not."""
    return process_id(process.pid) == process


def of_lease(lease_id: str, *, leader: int | None, state_dir: Path) -> list[ProcessId]:
    """Return the living processes of a lease: marked, in its session, or below its leader."""
    everything = list(_all())
    members = {one.process.pid for one in everything if leader and one.session == leader}
    members |= {
        one.process.pid
        for one in everything
        if _marks(one.process.pid) == (lease_id, str(state_dir))
    }
    grown = True
    while grown:
        below = {one.process.pid for one in everything if one.parent in members} - members
        members |= below
        grown = bool(below)
    members.discard(os.getpid())
    return [one.process for one in everything if one.process.pid in members]


def of_agent(state_dir: Path) -> dict[str, list[ProcessId]]:
    """Return the living processes of an agent's leases, by lease."""
    found: dict[str, list[ProcessId]] = {}
    for one in _all():
        lease_id, owner = _marks(one.process.pid)
        if lease_id and owner == str(state_dir) and one.process.pid != os.getpid():
            found.setdefault(lease_id, []).append(one.process)
    return found


def send(processes: Iterable[ProcessId], sent: signal.Signals) -> None:
    """Send a signal to these very processes; those that are gone are passed over."""
    for process in processes:
        if is_alive(process):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, sent)


def adopt_orphans() -> None:
    """Become the parent of processes whose parent dies, so that none of a trainer's is lost."""
    if _ON_LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def orphans() -> list[tuple[ProcessId, int]]:
    """Return the living children of this process in sessions of their own, with the session."""
    me, ours = os.getpid(), os.getsid(0)
    return [
        (one.process, one.session) for one in _all() if one.parent == me and one.session != ours
    ]


def collect_dead(*, own: Collection[int]) -> None:
    """Collect dead adopted processes; ``own`` are the children that somebody waits for."""
    if not _ON_LINUX:
        return
    me, ours = os.getpid(), os.getsid(0)
    for pid in _numbers():
        fields = _stat(pid)
        if fields is None or fields[0] not in _DEAD or int(fields[1]) != me:
            continue
        if pid not in own and int(fields[3]) != ours:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def out_of_memory_kills() -> int:
    """Return how often the kernel has killed for memory in our control group; 0 if unknown."""
    try:
        group = Path("/proc/self/cgroup").read_text(encoding="ascii").rpartition("::")[2].strip()
        events = Path(f"/sys/fs/cgroup{group}/memory.events").read_text(encoding="ascii")
    except OSError:
        return 0
    counts = dict(line.split() for line in events.splitlines())
    return int(counts.get("oom_kill", 0))


def _all() -> Iterator[_Seen]:
    for pid in _numbers():
        if seen := _look(pid):
            yield seen


def _numbers() -> list[int]:
    if not _ON_LINUX:
        return psutil.pids()
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _look(pid: int) -> _Seen | None:
    if not _ON_LINUX:
        return _look_elsewhere(pid)
    fields = _stat(pid)
    if fields is None or fields[0] in _DEAD:
        return None
    process = ProcessId(pid=pid, start=fields[19])
    return _Seen(process=process, parent=int(fields[1]), session=int(fields[3]))


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat after the name, which may hold spaces."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None


def _look_elsewhere(pid: int) -> _Seen | None:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        identity = ProcessId(pid=pid, start=f"{process.create_time():.2f}")
        return _Seen(process=identity, parent=process.ppid(), session=os.getsid(pid))
    except (psutil.Error, OSError):
        return None


def _marks(pid: int) -> tuple[str, str]:
    """Return the marks in a process's environment; empty where it has none or hides it."""
    lease, agent = f"{LEASE_MARK}=".encode(), f"{AGENT_MARK}=".encode()
    found = {lease: "", agent: ""}
    for entry in _environment(pid):
        for mark in found:
            if entry.startswith(mark):
                found[mark] = os.fsdecode(entry.removeprefix(mark))
    return found[lease], found[agent]


def _environment(pid: int) -> list[bytes]:
    try:
        if _ON_LINUX:
            return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        variables = psutil.Process(pid).environ()
    except (OSError, psutil.Error):
        return []
    return [os.fsencode(f"{name}={value}") for name, value in variables.items()]
