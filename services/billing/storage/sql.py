"""The statements of this service."""

from datetime import datetime
from pathlib import Path

from lehr.postgres import Connection, Queries

SQL = Queries.load(Path(__file__).with_name("queries.sql"))


async def now(conn: Connection) -> datetime:
    """Return the one clock of leases and money."""
    time: datetime = await conn.fetchval(SQL["now"])
    return time


async def cursor(conn: Connection, name: str) -> str:
    """Return where a sweep goes on; empty at first."""
    return await conn.fetchval(SQL["cursor_of"], name) or ""


async def move_cursor(conn: Connection, name: str, value: str) -> None:
    """Remember how far a sweep has come."""
    await conn.execute(SQL["move_cursor"], name, value)
