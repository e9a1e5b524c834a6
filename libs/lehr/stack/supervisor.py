"""The parts of a stack together: start in order, stop in reverse, leave nothing behind."""

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

from lehr.logs import get_logger
from lehr.stack.errors import StartFailed, StopFailed, UnknownPart
from lehr.stack.keeper import Keeper
from lehr.stack.logfile import cut, last_lines
from lehr.stack.part import Part, PartState, full_name
from lehr.stack.processes import adopt_orphans, collect, dead_children, kill_descendants

START_SECONDS = 90.0
"""How long parts may take to be ready for the first time."""

_CRASHES_AT_START_MAX = 3
_TIDY_EVERY_SECONDS = 5.0
_LOG_LINES_SHOWN = 20

_log = get_logger()


class Supervisor:
    """Keeps parts alive; one a process, in the main thread.

    Use as an async context: at its end every process that was started, and whatever those started,
    is gone.
    """

    def __init__(self, *, log: Callable[[str], Path], changed: Callable[[], None]) -> None:
        self._log_of = log
        self._changed = changed
        self._keepers: dict[str, Keeper] = {}
        self._tidier: asyncio.Task[None] | None = None

    @property
    def keepers(self) -> Sequence[Keeper]:
        """The parts in the order in which they were started."""
        return tuple(self._keepers.values())

    async def __aenter__(self) -> "Supervisor":
        adopt_orphans()
        self._tidier = asyncio.create_task(self._tidy(), name="tidy")
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.stop()

    def keeper(self, name: str) -> Keeper:
        """Return a part by its name, or by what stands before its ``@`` if that is unique.

        Raises:
            UnknownPart: there is none, or several.
        """
        return self._keepers[full_name(name, self._keepers)]

    async def start(self, parts: Sequence[Part], *, within: float = START_SECONDS) -> None:
        """Start parts at the same time and return when all are ready.

        Raises:
            StartFailed: one keeps dying or takes too long; the others are left running.
        """
        keepers = [
            Keeper(part, log=self._log_of(part.name), changed=self._changed) for part in parts
        ]
        for keeper in keepers:
            self._keepers[keeper.part.name] = keeper
            keeper.start()
        deadline = time.monotonic() + within
        # A part that was stopped on purpose meanwhile is waited for by nobody.
        resting = {PartState.READY, PartState.DOWN}
        while any(keeper.state not in resting for keeper in keepers):
            for keeper in keepers:
                self._check_start(keeper, late=time.monotonic() > deadline)
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Stop all parts, those of a higher rank first, and kill what is left below us.

        Raises:
            StopFailed: a process outlived its kill.
        """

        def rank(keeper: Keeper) -> int:
            return -keeper.part.rank

        for _, group in groupby(sorted(self._keepers.values(), key=rank), key=rank):
            await asyncio.gather(*(keeper.stop() for keeper in group))
        if self._tidier is not None:
            self._tidier.cancel()
            self._tidier = None
        left = await asyncio.to_thread(kill_descendants, within=10.0)
        if left:
            raise StopFailed(f"processes {left} outlived their kill", pids=left)

    async def command(self, name: str, part: str) -> None:
        """Do to a part what a person or a test asks for; returns when it is done.

        Raises:
            UnknownPart: there is no such part, or no such command.
        """
        keeper = self.keeper(part)
        match name:
            case "kill":
                keeper.kill()
            case "pause":
                keeper.pause()
            case "resume":
                keeper.resume()
            case "start":
                keeper.start()
            case "stop":
                await keeper.stop()
            case _:
                raise UnknownPart(f"there is no command {name}", part=part)

    def _check_start(self, keeper: Keeper, *, late: bool) -> None:
        name = keeper.part.name
        if keeper.state in {PartState.READY, PartState.DOWN}:
            return
        if not late and keeper.restart_count < _CRASHES_AT_START_MAX:
            return
        lines = "\n".join(last_lines(self._log_of(name), _LOG_LINES_SHOWN))
        raise StartFailed(
            f"{name} does not become ready: {keeper.failure}.\nThe end of its log:\n{lines}",
            part=name,
            failure=keeper.failure,
        )

    async def _tidy(self) -> None:
        """Collect adopted orphans that died, and keep logs short."""
        before: set[int] = set()
        while True:
            await asyncio.sleep(_TIDY_EVERY_SECONDS)
            # Our own children are collected at once by those who wait for them.
            dead = await asyncio.to_thread(dead_children)
            collect(dead & before)
            before = dead - before
            for name in self._keepers:
                cut(self._log_of(name))
