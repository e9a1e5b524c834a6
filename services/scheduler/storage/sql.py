"""The statements of the scheduler, and its clock."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from lehr.postgres import Connection, Queries

SQL = Queries.load(Path(__file__).with_name("queries.sql"))


async def now(conn: Connection) -> datetime:
    """Return the time of the one clock that leases and money follow, too."""
    time: datetime = await conn.fetchval(SQL["now"])
    return time
