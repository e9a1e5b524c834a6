"""Claims of workers on entries that the catalog has to import or validate."""

from dataclasses import asdict, dataclass
from datetime import timedelta

from lehr.postgres import Connection
from services.catalog.domain.entries import Entry, Progress
from services.catalog.storage.entries import statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An entry that this worker, and no other, works on until the claim is not renewed."""

    kind: type[Entry]
    entry_id: str
    tenant: str
    project: str
    worker: str
    """Name of this claim alone."""
    attempts: int
    """Which attempt this is, from 1."""

    @property
    def place(self) -> tuple[str, str, str]:
        """What every statement names: tenant, entry and worker."""
        return self.tenant, self.entry_id, self.worker


async def take(
    conn: Connection, kind: type[Entry], worker: str, lifetime: timedelta
) -> Claim | None:
    """Claim the entry that has waited longest; None where there is nothing to do."""
    row = await conn.fetchrow(statement("claim_entry", kind), worker, lifetime)
    return None if row is None else Claim(kind=kind, worker=worker, **dict(row))


async def renew(conn: Connection, claim: Claim, lifetime: timedelta, progress: Progress) -> bool:
    """Keep a claim; False when it is lost."""
    query = statement("renew_entry", claim.kind)
    return await conn.fetchval(query, *claim.place, lifetime, asdict(progress)) is not None


async def release(conn: Connection, claim: Claim, pause: timedelta, *, counts: bool) -> None:
    """Give a claim back; the attempt ``counts`` or does not. A lost claim is no error."""
    await conn.execute(statement("release_entry", claim.kind), *claim.place, pause, counts)


async def put_off(
    conn: Connection, claim: Claim, pause: timedelta, why: str, *, counts: bool
) -> None:
    """Give a claim back for a pause and say why; ``counts`` where the source is what is away."""
    query = statement("put_off_entry", claim.kind)
    await conn.execute(query, *claim.place, pause, why, counts)
