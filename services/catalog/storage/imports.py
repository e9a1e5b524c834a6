"""Plans of imports and encrypted secrets; every statement names the tenant."""

from dataclasses import asdict, dataclass
from datetime import datetime

from lehr.postgres import Connection
from services.catalog.domain.entries import Dataset, Entry, File, Model
from services.catalog.domain.imports import ImportPlan
from services.catalog.storage.entries import QUERIES, statement


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCredential:
    """A name, and what only the catalog's key opens."""

    name: str
    kind: str
    """hub or s3."""
    create_time: datetime
    secret: bytes = b""
    """Encrypted; empty in listings."""


async def plan_import(conn: Connection, entry: Entry, plan: ImportPlan) -> None:
    """Keep what an import has to fetch; nothing of it has arrived."""
    model_id = entry.model_id if isinstance(entry, Model) else None
    dataset_id = entry.dataset_id if isinstance(entry, Dataset) else None
    await conn.execute(QUERIES["plan_import"], entry.tenant, model_id, dataset_id, asdict(plan))


async def import_of(conn: Connection, entry: Entry) -> tuple[ImportPlan, dict[str, File]] | None:
    """Return what an import has to fetch, and by name what is in the object store."""
    row = await conn.fetchrow(QUERIES["import_of"], entry.tenant, entry.entry_id)
    if row is None:
        return None
    arrived = {file["name"]: File(**file) for file in row["arrived"]}
    return ImportPlan.read(row["plan"]), arrived


async def save_arrived(conn: Connection, entry: Entry, file: File) -> None:
    """Say that one more file is in the object store, so that the source is no longer away."""
    await conn.execute(QUERIES["save_arrived"], entry.tenant, entry.entry_id, [asdict(file)])
    await conn.execute(statement("went_on", type(entry)), entry.tenant, entry.entry_id)


async def put_credential(
    conn: Connection, tenant: str, project: str, credential: tuple[str, str, bytes]
) -> None:
    """Keep a secret: name, kind, and the encrypted text."""
    await conn.execute(QUERIES["put_credential"], tenant, project, *credential)


async def find_credential(
    conn: Connection, tenant: str, project: str, name: str
) -> StoredCredential | None:
    """Return a secret, still encrypted."""
    row = await conn.fetchrow(QUERIES["credential"], tenant, project, name)
    return None if row is None else StoredCredential(**dict(row))


async def credentials_of(conn: Connection, tenant: str, project: str) -> list[StoredCredential]:
    """Return names of secrets, in their order."""
    rows = await conn.fetch(QUERIES["credentials_of"], tenant, project)
    return [StoredCredential(**dict(row)) for row in rows]


async def delete_credential(conn: Connection, tenant: str, project: str, name: str) -> None:
    """Forget a secret; one that is not there is no error."""
    await conn.execute(QUERIES["delete_credential"], tenant, project, name)
