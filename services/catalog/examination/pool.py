"""Processes of our own that read what strangers made; one that dies takes nothing with it.

Each has a pair of sockets to its parent and no secret in its environment, and ends when the parent
does. Work is given out one item at a time, so that it is known which item a process died of.
"""

import contextlib
import gc
import math
import os
import pickle
import resource
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Self

MEMORY_BYTES_MAX = 2 * 2**30
"""Memory that a process may use; a row that needs more cannot be read."""

Work = Callable[[Any, Any], Iterator[Any]]
"""Yields results for a context and an item; a function of a module."""

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
_FAULT_SETTINGS = ("LEHR_FAULTS_FILE", "LEHR_TEST_HOOKS", "LEHR_MODE")
_HEARTBEAT_SECONDS = 1.0
_RESULTS_HELD = 2
_ITEMS_AHEAD = 4


class ReaderDied(Exception):  # noqa: N818 - as other errors here are named
    """A process of the pool ended in the middle of an item."""

    def __init__(self, item: Any) -> None:
        super().__init__("a process of the pool has died")
        self.item = item


@dataclass(slots=True, kw_only=True)
class _Process:
    popen: subprocess.Popen[bytes]
    connection: Connection
    context: Any = None


@dataclass(slots=True, kw_only=True)
class _Job:
    item: Any
    process: _Process
    results: deque[Any] = field(default_factory=deque)
    is_done: bool = False


class Pool:
    """Up to ``processes`` processes, each started when it is first needed; to be closed."""

    def __init__(self, processes: int, *, heartbeat: Callable[[], None]) -> None:
        self.context: Any = None
        """What work gets beside its item; each process is sent it once."""
        self._processes = processes
        self._heartbeat = heartbeat
        self._idle: list[_Process] = []
        self._all: list[_Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *told: object) -> None:
        while self._all:
            self._bury(self._all[0])

    def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Return what ``function`` of a module returns, run in a process of the pool.

        Raises:
            ReaderDied: the process died of it.
        """
        [(_, result)] = self.each(_ask, [(function, argument)])
        return result

    def each(self, work: Work, items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each item with each of its results, in the order of the items.

        Items are taken, and results made, only a little ahead of what is yielded. While nothing
        comes the heartbeat is called about once a second; what it raises ends the work.

        Raises:
            ReaderDied: a process died of an item.
        """
        source = iter(items)
        ahead: deque[Any] = deque()
        jobs: deque[_Job] = deque()
        while True:
            if not ahead:
                ahead.extend(_one(source))
            while ahead and len(jobs) < _ITEMS_AHEAD * self._processes and self._has_room():
                jobs.append(self._begin(work, ahead.popleft()))
                ahead.extend(_one(source))
            if not jobs:
                return
            while jobs and (jobs[0].results or jobs[0].is_done):
                head = jobs[0]
                while head.results:
                    yield head.item, head.results.popleft()
                if head.is_done:
                    jobs.popleft()
                    break
            else:
                self._receive(jobs)

    def _has_room(self) -> bool:
        return bool(self._idle) or len(self._all) < self._processes

    def _begin(self, work: Work, item: Any) -> _Job:
        process = self._idle.pop() if self._idle else self._started()
        # A process that died while it was idle is found when its answer is awaited.
        with contextlib.suppress(OSError):
            if process.context is not self.context:
                process.context = self.context
                _send(process.connection, (None, self.context))
            _send(process.connection, (work, item))
        return _Job(item=item, process=process)

    def _receive(self, jobs: deque[_Job]) -> None:
        """Wait for one of the processes that may answer now."""
        asked = {
            job.process.connection: job
            for job in jobs
            if not job.is_done and (job is jobs[0] or len(job.results) < _RESULTS_HELD)
        }
        ready = wait(list(asked), timeout=_HEARTBEAT_SECONDS)
        if not ready:
            self._heartbeat()
        for connection in ready:
            job = asked[connection]  # type: ignore[index]  # only connections were asked
            try:
                is_last, result, error = pickle.loads(job.process.connection.recv_bytes())  # noqa: S301
            except (EOFError, OSError):
                self._bury(job.process)
                raise ReaderDied(job.item) from None
            if not is_last:
                job.results.append(result)
                continue
            job.is_done = True
            self._idle.append(job.process)
            if error is not None:
                raise error

    def _bury(self, process: _Process) -> None:
        process.popen.kill()
        process.popen.wait()
        process.connection.close()
        self._all.remove(process)

    def _started(self) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
            popen = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={
                    name: os.environ[name]
                    for name in (*_PASSED_ON, *_FAULT_SETTINGS)
                    if name in os.environ
                },
            )
        process = _Process(popen=popen, connection=Connection(ours.detach()))
        self._all.append(process)
        return process


def serve() -> None:
    """Be a process of a pool: answer until the parent hangs up."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    os.nice(5)  # a service that answers people goes first
    # Rows make many objects and no cycles; looking for those takes a sixth of the time.
    gc.freeze()
    gc.set_threshold(200_000, 50, 50)
    hit = _fault_points()
    connection = Connection(os.dup(0))
    with contextlib.suppress(EOFError, OSError):
        context: Any = None
        while True:
            work, item = pickle.loads(connection.recv_bytes())  # noqa: S301 - from the parent
            if work is None:
                context = item
                continue
            hit("catalog.pool.item")
            try:
                for result in work(context, item):
                    _send(connection, (False, result, None))
                _send(connection, (True, None, None))
            except Exception as error:
                _send(connection, (True, None, error))


def allow_seconds(seconds: int) -> None:
    """Let the process that asks die once it has taken so many more seconds of processor time.

    They are no seconds of a clock: on a busy machine nothing dies that lives on an idle one.
    """
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    end = math.ceil(time.process_time()) + seconds
    resource.setrlimit(
        resource.RLIMIT_CPU, (end if most == resource.RLIM_INFINITY else min(end, most), most)
    )


def _fault_points() -> Callable[[str], None]:
    """Return what breaks this process where a test wants it; nothing else is imported for it."""
    if "LEHR_FAULTS_FILE" not in os.environ:
        return lambda _: None
    from lehr import faults  # noqa: PLC0415

    return faults.hit_sync


def _ask(_: Any, item: Any) -> Iterator[Any]:
    function, argument = item
    yield function(argument)


def _send(connection: Connection, value: Any) -> None:
    connection.send_bytes(pickle.dumps(value, protocol=5))


def _one(source: Iterator[Any]) -> Iterator[Any]:
    for item in source:
        yield item
        return
