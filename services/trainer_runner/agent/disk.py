"""The one thread that writes databases: the loop never waits for a disk."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_PARAMETER = re.compile(r"\$(\d+)")


class Disk:
    """Runs functions one after the other in a thread of their own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk")

    async def run(self, function: Callable[[], T]) -> T:
        """Return what ``function`` returns; calls keep their order."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def close(self) -> None:
        """Finish what was begun."""
        self._pool.shutdown(wait=True)


def connect(path: Path) -> sqlite3.Connection:
    """Open a database whose commits are on the disk when they return."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def numbered(sql: str) -> str:
    """Turn the ``$1`` of our SQL files into the ``?1`` of sqlite."""
    return _PARAMETER.sub(r"?\1", sql)
