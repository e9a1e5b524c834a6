"""One trainer process: started so that it cannot outlive us, its pipes always drained."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from lehr.training.ends import RunEnd
from services.trainer_runner.agent import processes
from services.trainer_runner.agent.folders import RunFolder
from services.trainer_runner.agent.processes import ProcessId
from services.trainer_runner.agent.waiting import until

READ_BYTES = 64 * 1024
LAUNCHER = "services.trainer_runner.agent.launcher"
_ON_LINUX = sys.platform == "linux"

#: What a trainer needs of our environment to find itself, its libraries and its language.
_PASSED_ON = (
    "PATH",
    "LANG",
    "LC_ALL",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "OMP_NUM_THREADS",
    "CUDA_HOME",
    "NCCL_DEBUG",
    "LEHR_MODE",
    "LEHR_TEST_HOOKS",
    "LEHR_FAULTS_FILE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How to start a trainer."""

    module: str
    """Python module that takes --plan, --report-fd and --control-fd."""
    folder: RunFolder
    lease_id: str
    state_dir: Path
    environment: Mapping[str, str]
    """The agent's own, of which little is passed on."""
    visibility: Mapping[str, str]
    """Which devices it may see."""

    def variables(self) -> dict[str, str]:
        """Return the whole environment of the trainer; it holds no secret."""
        passed_on = {
            name: self.environment[name] for name in _PASSED_ON if name in self.environment
        }
        return {
            "LANG": "C.UTF-8",
            **passed_on,
            **self.visibility,
            "HOME": str(self.folder.home_dir),
            "TMPDIR": str(self.folder.temporary_dir),
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "TOKENIZERS_PARALLELISM": "false",
            processes.LEASE_MARK: self.lease_id,
            processes.AGENT_MARK: str(self.state_dir),
        }


class Child:
    """A trainer and its pipes; use from the loop of the main thread."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        pipes: Mapping[int, Callable[[bytes], None]],
        control: int,
    ) -> None:
        self._process = process
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._open = set(pipes)
        self._drained = asyncio.Event()
        self.began = monotonic()
        self.leader = processes.process_id(process.pid) or ProcessId(pid=process.pid, start="")
        for descriptor, take in pipes.items():
            os.set_blocking(descriptor, False)
            self._loop.add_reader(descriptor, self._read, descriptor, take)

    @classmethod
    def start(
        cls,
        command: Command,
        *,
        on_output: Callable[[bytes], None],
        on_report: Callable[[bytes], None],
    ) -> Child:
        """Start a trainer in a session of its own; ``b""`` says that a pipe has ended.

        Must be called in the main thread, for the kernel ends it with the thread that started it.

        Raises:
            OSError: it cannot be started.
        """
        output, output_end = os.pipe()
        report, report_end = os.pipe()
        control_end, control = os.pipe()
        theirs = (output_end, report_end, control_end)
        arguments = [str(os.getpid()), command.module, "--plan", str(command.folder.plan_file)]
        arguments += ["--report-fd", str(report_end), "--control-fd", str(control_end)]
        try:
            process = subprocess.Popen(
                # -P: nothing that lies in the working folder is imported.
                [sys.executable, "-P", "-m", LAUNCHER, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output_end,
                stderr=output_end,
                pass_fds=(report_end, control_end),
                cwd=command.folder.home_dir,
                env=command.variables(),
                start_new_session=True,
            )
        except OSError:
            for descriptor in (output, report, control):
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        os.set_blocking(control, False)
        return cls(process, pipes={output: on_output, report: on_report}, control=control)

    @property
    def code(self) -> int | None:
        """Exit status, minus a signal's number, or None while it lives."""
        return self._process.poll()

    def ask_to_stop(self, reason: RunEnd, *, until: float | None) -> None:
        """Ask it to save and end; one that does not read is not waited for.

        ``until`` are the CLOCK_MONOTONIC seconds until which it may finish the step that it
        computes; None lets it drop that at once.
        """
        command = {"kind": "stop", "reason": reason.value}
        message = json.dumps(command if until is None else {**command, "until": until}) + "\n"
        with contextlib.suppress(OSError):
            os.write(self._control, message.encode())

    def terminate(self) -> None:
        """Send SIGTERM to its process group."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to its process group; what broke out of that is found by its mark."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def exited(self) -> int:
        """Wait for its end."""
        descriptor = -1
        if _ON_LINUX:
            with contextlib.suppress(OSError):
                descriptor = os.pidfd_open(self._process.pid)
        try:
            if descriptor >= 0:
                ended = asyncio.Event()
                self._loop.add_reader(descriptor, ended.set)
                await ended.wait()
        finally:
            if descriptor >= 0:
                self._loop.remove_reader(descriptor)
                os.close(descriptor)
        await until(lambda: self.code is not None)
        return self._process.returncode

    async def drained(self, *, within: float) -> None:
        """Wait until both pipes have ended, then close what is ours."""
        if self._open:
            # Not wait_for: until Python 3.12 it loses a cancellation that comes with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._drained.wait()
        for descriptor in list(self._open):
            self._close(descriptor)
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def _read(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        # One read a turn: a trainer that floods us must not starve the rest of the agent.
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(descriptor)
        take(data)

    def _close(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.remove(descriptor)
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        if not self._open:
            self._drained.set()
