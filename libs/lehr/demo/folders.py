"""Make a folder once: another process sees it whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def make_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return ``folder``, filled by ``fill`` if it does not exist yet.

    Processes that come at the same time wait for the first; one that died leaves nothing behind
    but a hidden folder that the next one removes.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        unfinished = folder.parent / f".{folder.name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        fill(unfinished)
        os.replace(unfinished, folder)
    return folder
