"""Trivial parts for the tests of the supervisor: small programs with the shell's ways to behave."""

import os
import sys
from pathlib import Path

from lehr.stack.part import Part

SERVE = "open('ready', 'w').close(); import time; time.sleep(600)"
IGNORE_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SERVE


def a_part(folder: Path, *, program: str = SERVE, stop_seconds: float = 10.0) -> Part:
    """Return a part that is ready when the file ``ready`` is there; each start removes it."""
    ready = folder / "ready"

    async def probe() -> None:
        ready.stat()

    return Part(
        name="child",
        argv=(sys.executable, "-S", "-c", program),
        environment={"PATH": os.defpath},
        folder=folder,
        probe=probe,
        prepare=lambda: ready.unlink(missing_ok=True),
        stop_seconds=stop_seconds,
    )
