"""A folder for this process alone; what killed ones left is removed by the next."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_FOLDER = re.compile(r"lehr-catalog-(\d+)-\w+")


@contextmanager
def scratch_folder(place: Path | None) -> Iterator[Path]:
    """Give a folder below ``place``, or where the system keeps such, while the block lasts."""
    place = Path(tempfile.gettempdir()) if place is None else place
    place.mkdir(parents=True, exist_ok=True)
    for folder in place.glob("lehr-catalog-*"):
        named = _FOLDER.fullmatch(folder.name)
        is_ours = folder.stat().st_uid == os.getuid()
        if named and is_ours and not psutil.pid_exists(int(named[1])):
            shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=f"lehr-catalog-{os.getpid()}-") as made:
        yield Path(made)
