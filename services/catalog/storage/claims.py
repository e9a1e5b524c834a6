"""Claims of workers on entries that the catalog has to import or validate."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Literal

from lehr.postgres import Connection
from services.catalog.domain.entries import Progress
from services.catalog.storage.entries import QUERIES

Noun = Literal["model", "dataset"]

NOUNS: tuple[Noun, ...] = ("model", "dataset")

_CLAIM = {"model": "claim_model", "dataset": "claim_dataset"}
_RENEW = {"model": "renew_model", "dataset": "renew_dataset"}
_RELEASE = {"model": "release_model", "dataset": "release_dataset"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An entry that this worker, and no other, works on until the claim is not renewed."""

    noun: Noun
    entry_id: str
    tenant: str
    project: str
    worker: str
    """Name of this claim alone."""
    attempts: int
    """Which attempt this is, from 1."""


async def take(conn: Connection, noun: Noun, worker: str, lifetime: timedelta) -> Claim | None:
    """Claim the entry that has waited longest; None where there is nothing to do."""
    row = await conn.fetchrow(QUERIES[_CLAIM[noun]], worker, lifetime)
    if row is None:
        return None
    return Claim(
        noun=noun,
        entry_id=row[f"{noun}_id"],
        tenant=row["tenant"],
        project=row["project"],
        worker=worker,
        attempts=row["attempts"],
    )


async def renew(conn: Connection, claim: Claim, lifetime: timedelta, progress: Progress) -> bool:
    """Keep a claim; False when it is lost."""
    kept = await conn.fetchval(
        QUERIES[_RENEW[claim.noun]],
        claim.tenant,
        claim.entry_id,
        claim.worker,
        lifetime,
        asdict(progress),
    )
    return kept is not None


async def release(conn: Connection, claim: Claim, pause: timedelta, *, counts: bool) -> None:
    """Give a claim back; the attempt ``counts`` or does not. A lost claim is no error."""
    await conn.execute(
        QUERIES[_RELEASE[claim.noun]], claim.tenant, claim.entry_id, claim.worker, pause, counts
    )
