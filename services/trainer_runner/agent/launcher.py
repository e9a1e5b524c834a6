"""The first code of a trainer process: ties its life to the agent's, then becomes the trainer.

The agent cannot do this between fork and exec: running Python there, in a process with gRPC's
threads, ends in a crash of the child now and then. Nothing but the standard library is imported.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Run a module as the main one; ``arguments`` are the agent's process, the module, its own."""
    agent, module, *own = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(agent):
        # The agent died before the kernel was asked to tell.
        os._exit(1)
    sys.argv = [module, *own]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
