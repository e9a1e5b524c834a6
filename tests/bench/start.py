"""Times how long the embedded stack takes to be ready, and measures its memory, cold and warm.

python -m tests.bench.start [rounds]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from lehr.stack import Stack


def main(rounds: int) -> int:
    """Print seconds and MiB of each start; a cold one makes the database, a warm one finds it."""
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as folder:
        stack = Stack(Path(folder) / "state")
        try:
            for number in range(rounds):
                began = time.monotonic()
                stack.up()
                seconds = time.monotonic() - began
                mebibytes = stack.status().memory_bytes / 2**20
                kind = "warm" if number else "cold"
                print(f"{kind}: ready in {seconds:.1f} s, {mebibytes:.0f} MiB")
                stack.down()
        finally:
            stack.remove()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2))
