"""What code calls at a fault point."""

import asyncio
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from lehr.errors import Unavailable
from lehr.faults.names import FAULTS
from lehr.faults.plan import Counts, Fault, Plan
from lehr.settings import faults_file

_LOOK_AGAIN_SECONDS = 0.05


class FaultInjected(Unavailable):
    """A test broke this point on purpose."""

    reason = "FAULT_INJECTED"

    def __init__(self, name: str) -> None:
        super().__init__(f"fault point {name} was armed to fail", fault=name)


@dataclass(slots=True)
class _Reader:
    """The plan as last read, and the name under which this process counts."""

    process: str | None = None
    version: tuple[Path, int, int, int] | None = None
    plan: Plan = field(default_factory=lambda: Plan({}))

    def armed(self, name: str) -> tuple[Path, Fault] | None:
        """Return the fault armed at a point, reading the file again when it has changed."""
        file = faults_file()
        if file is None:
            return None
        if name not in FAULTS:
            raise ValueError(f"{name} is not a fault point: list it in lehr/faults/names.py")
        try:
            seen = file.stat()
        except FileNotFoundError:
            return None
        # Size and inode beside the time: two writes may share one tick of the clock.
        version = (file, seen.st_mtime_ns, seen.st_size, seen.st_ino)
        if version != self.version:
            self.plan, self.version = Plan.read(file), version
        fault = self.plan.root.get(name)
        return None if fault is None else (file, fault)

    def due(self, name: str) -> Fault | None:
        """Count the hit and return the fault if this is the hit that breaks."""
        armed = self.armed(name)
        if armed is None:
            return None
        file, fault = armed
        return fault if Counts(file, self.process or _main_module()).add(name, fault) else None

    def still_armed(self, name: str, fault: Fault) -> bool:
        """Return whether a hanging process must go on hanging."""
        armed = self.armed(name)
        return armed is not None and armed[1] == fault


_reader = _Reader()


def name_process(name: str) -> None:
    """Count hits under this name, such as ``trainer_runner-1``, instead of the main module's."""
    _reader.process = name


async def hit(name: str) -> None:
    """Pass a fault point: nothing, or what a test armed there.

    Raises:
        FaultInjected: the point was armed with ``error``.
    """
    fault = _reader.due(name)
    if fault is None:
        return
    _strike(name, fault)
    if fault.action == "delay":
        await asyncio.sleep(fault.seconds)
    # The event is in another process: only the file tells.
    while fault.action == "hang" and _reader.still_armed(name, fault):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)


def hit_sync(name: str) -> None:
    """Pass a fault point in code without a loop; a delay or hang blocks the thread."""
    fault = _reader.due(name)
    if fault is None:
        return
    _strike(name, fault)
    if fault.action == "delay":
        time.sleep(fault.seconds)
    while fault.action == "hang" and _reader.still_armed(name, fault):
        time.sleep(_LOOK_AGAIN_SECONDS)


def _strike(name: str, fault: Fault) -> None:
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.action == "error":
        raise FaultInjected(name)


def _main_module() -> str:
    """Return what ``python -m`` started, the same after a restart."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name: str = spec.name if spec is not None else "main"
    return name.removesuffix(".__main__")
