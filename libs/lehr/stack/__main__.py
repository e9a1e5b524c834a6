"""Starts the supervisor's process; ``lehr up`` calls it, and so may systemd."""

import argparse
import asyncio
import os
import sys

from lehr.errors import PlatformError
from lehr.logs import configure
from lehr.stack.daemon import Daemon
from lehr.stack.errors import StackRuns
from lehr.stack.layout import Layout
from lehr.stack.processes import ProcessMark
from lehr.stack.settings import Options, state_dir

RUNS_ALREADY = 75


def main(arguments: list[str]) -> int:
    """Run the supervisor until it is told to stop."""
    parser = argparse.ArgumentParser(prog="python -m lehr.stack", description=__doc__)
    parser.add_argument(
        "--state-dir", required=True, help="the installation; uses its stored options"
    )
    parser.add_argument("--options", help="- reads them from standard input")
    parser.add_argument("--owner", type=int, help="process whose death ends the stack")
    parser.add_argument("--detach", action="store_true", help="print the process id and go on")
    chosen = parser.parse_args(arguments)
    layout = Layout(root=state_dir(chosen.state_dir))
    owner = None
    if chosen.owner is not None:
        owner = ProcessMark.of(chosen.owner)
        if owner is None:
            print(f"process {chosen.owner}, which owns the stack, is gone", file=sys.stderr)
            return 1
    stored = layout.options.read_text if chosen.options is None else sys.stdin.read
    options = Options.loads(stored())
    if chosen.detach:
        _detach()
    configure("supervisor", "console")
    try:
        asyncio.run(Daemon(layout, options).run(owner=owner))
    except StackRuns as error:
        print(error, file=sys.stderr)
        return RUNS_ALREADY
    except PlatformError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _detach() -> None:
    """Go on in a child that no terminal and no parent can end; tell its number and leave."""
    child = os.fork()
    if child != 0:
        print(child, flush=True)
        os._exit(0)
    # Standard output was for the number alone; the log is where errors go already.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
