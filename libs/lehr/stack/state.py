"""The state file: what runs where, for those who look and for the next supervisor."""

import json
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from lehr.stack.errors import StopFailed
from lehr.stack.keeper import Keeper
from lehr.stack.layout import write_private
from lehr.stack.part import PartState
from lehr.stack.processes import ProcessMark

_QUICK_STOP_SECONDS = 5.0
_KILL_SECONDS = 10.0


class Phase(StrEnum):
    """How the stack is as a whole."""

    STARTING = "starting"
    """The supervisor lives and not all was ready yet."""
    READY = "ready"
    """All parts were ready; what happens to one later is told by its own state."""
    STOPPING = "stopping"
    """The supervisor ends its parts."""
    DOWN = "down"
    """Nothing runs."""
    FAILED = "failed"
    """The last start failed, and nothing runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """How one part is."""

    name: str
    """As in ``lehr logs``."""

    state: PartState
    """Whether it serves."""

    failure: str
    """Why it does not; empty if it does."""

    process: ProcessMark | None
    """The living process."""

    port: int | None
    """Where it is called on loopback."""

    restart_count: int
    """How often it was started again since the supervisor started."""

    since: datetime
    """When it came into its state."""

    memory_bytes: int = 0
    """Of the process and those below it, shared memory counted once; 0 in the state file."""

    @property
    def pid(self) -> int | None:
        """Number of the living process."""
        return None if self.process is None else self.process.pid

    def serves(self) -> bool:
        """Say whether the part is ready and has not died since its last probe."""
        alive = self.process is not None and self.process.is_alive()
        return self.state is PartState.READY and alive

    @classmethod
    def of(cls, keeper: Keeper) -> Self:
        """Describe a part as its keeper sees it."""
        return cls(
            name=keeper.part.name,
            state=keeper.state,
            failure=keeper.failure,
            process=keeper.mark,
            port=keeper.part.port,
            restart_count=keeper.restart_count,
            since=keeper.since,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """The content of the state file."""

    phase: Phase = Phase.DOWN
    """How far the stack is."""

    failure: str = ""
    """Why the last start failed."""

    supervisor: ProcessMark | None = None
    """The process that keeps the parts."""

    control: str | None = None
    """Socket on which it takes commands."""

    ports: Mapping[str, int] = field(default_factory=dict)
    """Assigned ports by purpose, the base of the block as ``""``; kept when the stack is down."""

    parts: tuple[PartStatus, ...] = ()
    """In the order in which they were started."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file; an absent or broken one is a stack that never ran."""
        try:
            return cls._from_json(json.loads(path.read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls()

    def write(self, path: Path) -> None:
        """Replace the file in one step."""
        write_private(path, json.dumps(asdict(self), indent=1, default=str).encode())

    @classmethod
    def _from_json(cls, saved: Mapping[str, Any]) -> Self:
        return cls(
            phase=Phase(saved["phase"]),
            failure=saved["failure"],
            supervisor=_mark(saved["supervisor"]),
            control=saved["control"],
            ports={name: int(port) for name, port in saved["ports"].items()},
            parts=tuple(
                PartStatus(
                    **part
                    | {
                        "state": PartState(part["state"]),
                        "process": _mark(part["process"]),
                        "since": datetime.fromisoformat(part["since"]),
                    }
                )
                for part in saved["parts"]
            ),
        )

    def end_stale(self) -> list[str]:
        """End what a killed supervisor left alive; return the names of those parts.

        Only processes with the recorded start time and arguments are touched. The caller holds the
        installation.

        Raises:
            StopFailed: a process outlived its kill.
        """
        stale = {
            part.name: part.process
            for part in self.parts
            if part.process is not None and part.process.is_alive()
        }
        # Postgres ends its sessions on this, and the others die; no part ignores it.
        for mark in stale.values():
            mark.send(signal.SIGCONT)
            mark.send(signal.SIGQUIT)
        _await_end(stale, within=_QUICK_STOP_SECONDS)
        for mark in stale.values():
            mark.kill()
        left = _await_end(stale, within=_KILL_SECONDS)
        if left:
            raise StopFailed(
                f"{', '.join(left)} of a former start outlived a kill: look at"
                f" processes {[stale[name].pid for name in left]}",
                parts=" ".join(left),
            )
        return list(stale)


def _await_end(marks: Mapping[str, ProcessMark], *, within: float) -> list[str]:
    deadline = time.monotonic() + within
    while True:
        left = [name for name, mark in marks.items() if mark.is_alive()]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def _mark(saved: Mapping[str, Any] | None) -> ProcessMark | None:
    if saved is None:
        return None
    return ProcessMark(pid=saved["pid"], start=saved["start"], command=tuple(saved["command"]))
