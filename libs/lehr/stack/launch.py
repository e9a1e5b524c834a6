"""Starting a supervisor that outlives us, and telling what became of it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from lehr.errors import PlatformError
from lehr.stack.errors import StackRuns, StartFailed
from lehr.stack.layout import Layout
from lehr.stack.logfile import last_lines
from lehr.stack.processes import ProcessMark
from lehr.stack.settings import Options
from lehr.stack.state import PartStatus, Phase, StackState
from lehr.stack.status import StackStatus, describe, look

LOOK_EVERY_SECONDS = 0.05

_LOG_LINES_SHOWN = 20


def launch(
    layout: Layout,
    options: Options,
    *,
    owned: bool,
    within: float,
    progress: Callable[[StackStatus], None] | None,
) -> StackStatus:
    """Start a supervisor and return when all its parts are ready.

    Raises:
        StackRuns: another one was faster.
        StartFailed: a part did not become ready, or the supervisor itself.
    """
    before = StackState.read(layout.state)
    supervisor = _spawn(layout, options, owned=owned)
    deadline = time.monotonic() + within
    while True:
        is_alive = supervisor.is_alive()
        state = StackState.read(layout.state)
        status = describe(layout, state)
        if state.supervisor == supervisor:
            if progress is not None:
                progress(status)
            if state.phase is Phase.READY:
                return status
        if not is_alive:
            raise _ended(layout, state, before)
        if time.monotonic() > deadline:
            raise not_ready(layout, [part for part in status.parts if not part.serves()])
        time.sleep(LOOK_EVERY_SECONDS)


def not_ready(layout: Layout, late: Sequence[PartStatus]) -> StartFailed:
    """Say which parts are late and why, with the end of the log of the first."""
    names = ", ".join(part.name for part in late) or "the supervisor"
    first = late[0].name if late else "supervisor"
    why = "".join(f"\n  {part.name} is {part.state}: {part.failure}" for part in late)
    lines = "\n".join(last_lines(layout.log(first), _LOG_LINES_SHOWN))
    return StartFailed(
        f"{names} did not become ready in time.{why}\nThe end of the log of {first}:\n{lines}",
        parts=names,
    )


def runs_already(layout: Layout) -> StackRuns:
    """Say where the stack that runs is."""
    status = look(layout)
    return StackRuns(
        f"a stack runs on {layout.root} already (gateway {status.gateway}, supervisor"
        f" {status.supervisor_pid}): use it, or stop it with lehr down",
        folder=layout.root,
        gateway=status.gateway,
    )


def _spawn(layout: Layout, options: Options, *, owned: bool) -> ProcessMark:
    command = [sys.executable, "-P", "-m", "lehr.stack", "--detach", "--options", "-"]
    command += ["--state-dir", str(layout.root)]
    command += ["--owner", str(os.getpid())] if owned else []
    with layout.log("supervisor").open("ab") as errors:
        # The program forks, tells the number of its child, and is done.
        done = subprocess.run(
            command,
            cwd=layout.work,
            env=options.for_all(),
            # Not by a file: of two starts at once each must use its own options.
            input=options.dumps().encode(),
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            check=False,
        )
    told = done.stdout.strip()
    mark = ProcessMark.of(int(told)) if told.isdigit() else None
    if mark is None:
        raise _died(layout)
    return mark


def _ended(layout: Layout, state: StackState, before: StackState) -> PlatformError:
    """Say why a supervisor that was to start everything is gone."""
    if layout.is_held():
        return runs_already(layout)
    if state.phase is Phase.FAILED and state != before:
        return StartFailed(state.failure)
    if state.phase is Phase.DOWN and state != before:
        return StartFailed("the stack was stopped by somebody else while it started")
    return _died(layout)


def _died(layout: Layout) -> StartFailed:
    lines = "\n".join(last_lines(layout.log("supervisor"), _LOG_LINES_SHOWN))
    return StartFailed(f"the supervisor ended at once. The end of its log:\n{lines}")
