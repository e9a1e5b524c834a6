"""What the object store may hold for entries that are gone or decided, as rows."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from lehr.postgres import Connection
from services.catalog.domain.entries import Entry
from services.catalog.storage.entries import QUERIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """An entry that is removed, and whose objects one remover deletes."""

    entry_id: str
    prefixes: list[str]
    claimed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An entry for whose parts addresses were given."""

    entry_id: str
    tenant: str
    open_time: datetime
    """When addresses were last given."""

    @property
    def prefix(self) -> str:
        """What the keys of its parts begin with."""
        return f"uploads/{self.tenant}/{self.entry_id}/"


async def begin_removal(
    conn: Connection, entry: Entry, remover: str, lifetime: timedelta
) -> Removal:
    """Note that the objects of an entry are still there; another may go on after ``lifetime``."""
    found = Removal(entry_id=entry.entry_id, prefixes=list(entry.prefixes), claimed_by=remover)
    await conn.execute(
        QUERIES["begin_removal"], entry.entry_id, entry.tenant, found.prefixes, remover, lifetime
    )
    return found


async def claim_removals(
    conn: Connection, remover: str, lifetime: timedelta, *, entry_id: str = "", count: int
) -> list[Removal]:
    """Take removals that nobody goes on with; that of one entry where it is named."""
    rows = await conn.fetch(QUERIES["claim_removals"], entry_id, remover, lifetime, count)
    return [Removal(**dict(row)) for row in rows]


async def end_removal(conn: Connection, removal: Removal) -> None:
    """Nothing of an entry is left."""
    await conn.execute(QUERIES["end_removal"], removal.entry_id, removal.claimed_by)


async def open_upload(conn: Connection, entry: Entry) -> None:
    """Note that parts of an entry may come from now on."""
    await conn.execute(QUERIES["open_upload"], entry.entry_id, entry.tenant)


async def decided_uploads(conn: Connection, lifetime: timedelta, count: int) -> list[Upload]:
    """Return uploads opened so long ago whose parts nobody awaits any more."""
    rows = await conn.fetch(QUERIES["decided_uploads"], lifetime, count)
    return [Upload(**dict(row)) for row in rows]


async def forget_upload(conn: Connection, upload: Upload) -> None:
    """No part of an upload is left; one that was opened again meanwhile stays."""
    await conn.execute(QUERIES["forget_upload"], upload.entry_id, upload.open_time)
