"""What a person sees of an installation."""

from dataclasses import dataclass, replace
from pathlib import Path

from lehr.stack.layout import Layout
from lehr.stack.part import PartState, full_name
from lehr.stack.ports import LOOPBACK
from lehr.stack.processes import memory_bytes
from lehr.stack.services import REST
from lehr.stack.state import PartStatus, Phase, StackState


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """How an installation is."""

    phase: Phase
    """How far it is as a whole."""

    failure: str
    """Why the last start failed; empty if it did not."""

    parts: tuple[PartStatus, ...]
    """Servers, services and runners, in the order of their start."""

    supervisor_pid: int | None
    """The process that keeps them."""

    supervisor_memory_bytes: int
    """What the supervisor itself takes."""

    gateway: str | None
    """Where clients call, ``host:port``; None before the first start."""

    rest: str | None
    """Address of HTTP for the same clients, ``http://host:port``; None before the first start."""

    api_key_file: Path
    """Holds the first API key."""

    @property
    def memory_bytes(self) -> int:
        """Of everything together; shared memory counted once."""
        return self.supervisor_memory_bytes + sum(part.memory_bytes for part in self.parts)

    def part(self, name: str) -> PartStatus:
        """Return a part by its name, as ``full_name`` completes it.

        Raises:
            UnknownPart: there is none, or several.
        """
        known = {part.name: part for part in self.parts}
        return known[full_name(name, known)]


def look(layout: Layout, *, with_memory: bool = False) -> StackStatus:
    """Look at an installation now; measuring memory takes some milliseconds a process."""
    state = StackState.read(layout.state)
    if not layout.is_held():
        # Nobody keeps the file true any more.
        down = (replace(part, state=PartState.DOWN, process=None) for part in state.parts)
        phase = Phase.FAILED if state.phase is Phase.FAILED else Phase.DOWN
        state = replace(state, phase=phase, supervisor=None, parts=tuple(down))
    status = describe(layout, state)
    return _measured(status) if with_memory else status


def describe(layout: Layout, state: StackState) -> StackStatus:
    """Turn the content of the state file into what a person sees."""
    port, rest_port = state.ports.get("gateway"), state.ports.get(REST)
    return StackStatus(
        phase=state.phase,
        failure=state.failure,
        parts=state.parts,
        supervisor_pid=None if state.supervisor is None else state.supervisor.pid,
        supervisor_memory_bytes=0,
        gateway=None if port is None else f"{LOOPBACK}:{port}",
        rest=None if rest_port is None else f"http://{LOOPBACK}:{rest_port}",
        api_key_file=layout.api_key,
    )


def _measured(status: StackStatus) -> StackStatus:
    supervisor = status.supervisor_pid
    return replace(
        status,
        supervisor_memory_bytes=0 if supervisor is None else memory_bytes(supervisor, family=False),
        parts=tuple(
            part if part.pid is None else replace(part, memory_bytes=memory_bytes(part.pid))
            for part in status.parts
        ),
    )
