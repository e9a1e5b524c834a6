"""Applies numbered SQL files to one schema, each once and forward only.

A file is ``NNNN_pre_<name>.sql`` (before the new code runs) or ``NNNN_post_<name>.sql`` (after the
old code is gone), in the format of dbmate: ``-- migrate:up`` starts the statements, with
``transaction:false`` behind it for a single statement that cannot be in a transaction;
``-- migrate:down`` ends them.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from lehr.errors import FailedPrecondition
from lehr.logs import get_logger
from lehr.postgres.database import Connection
from lehr.postgres.queries import Queries

Stage = Literal["pre", "post"]
STAGES: frozenset[Stage] = frozenset(("pre", "post"))

_FILE = re.compile(r"(\d{4})_(pre|post)_[a-z0-9_]+\.sql")
_UP = re.compile(r"^-- migrate:up(?P<bare>\s+transaction:false)?[ \t]*$", re.M)
_DOWN = re.compile(r"^-- migrate:down\b.*", re.M | re.S)

_log = get_logger(__name__)
_queries = Queries.load(Path(__file__).with_name("queries.sql"))


class MigrationRefused(FailedPrecondition):
    """The files and what the database has applied contradict each other."""

    reason = "MIGRATION_REFUSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One file of statements."""

    name: str
    """File name, unique within its source."""
    number: int
    stage: Stage
    sql: str
    digest: str
    """SHA-256 of the whole file in hex."""
    in_transaction: bool


def read_migrations(folder: Path) -> list[Migration]:
    """Return the migrations of a folder by number; none where there is no folder.

    Raises:
        MigrationRefused: a file with a wrong name, without ``-- migrate:up``, or of a taken number.
    """
    if not folder.is_dir():
        return []
    migrations = [_read(file) for file in sorted(folder.glob("*.sql"))]
    for before, after in pairwise(migrations):
        if before.number == after.number:
            raise MigrationRefused(
                f"{before.name} and {after.name} in {folder} have one number; renumber the newer",
                folder=folder,
                number=before.number,
            )
    return migrations


async def apply(
    connection: Connection,
    *,
    schema: str,
    source: str,
    migrations: Sequence[Migration],
    stages: frozenset[Stage] = STAGES,
) -> list[str]:
    """Apply what is new and return the names; the caller holds the lock of the database.

    ``source`` keeps the numbers of shared files apart from those of the service. Files that the
    database knows and the folder does not are left alone: older code may run on a newer schema.

    Raises:
        MigrationRefused: an applied file has changed, or a new one has a number that is passed.
    """
    rows = await connection.fetch(_queries["applied_migrations"].format(schema=schema), source)
    applied = {row["name"]: row["digest"] for row in rows}
    for migration in migrations:
        _check_unchanged(migration, schema=schema, digest=applied.get(migration.name))
    due = [each for each in migrations if each.name not in applied and each.stage in stages]
    for migration in due:
        _check_order(migration, schema=schema, applied=list(applied))
        await _run(connection, migration, schema=schema, source=source)
        _log.info("migration_applied", schema=schema, source=source, migration=migration.name)
    return [migration.name for migration in due]


async def _run(connection: Connection, migration: Migration, *, schema: str, source: str) -> None:
    record = _queries["record_migration"].format(schema=schema)
    row = (source, migration.name, migration.digest)
    try:
        await connection.execute(_queries["use_schema"], schema)
        if migration.in_transaction:
            async with connection.transaction():
                await connection.execute(migration.sql)
                await connection.execute(record, *row)
        else:
            await connection.execute(migration.sql)
            await connection.execute(record, *row)
    finally:
        if not connection.is_closed():
            # A file may SET what the next one must not inherit.
            await connection.execute(_queries["forget_settings"])


def _read(file: Path) -> Migration:
    name = _FILE.fullmatch(file.name)
    if name is None:
        raise MigrationRefused(
            f"{file} is not named NNNN_pre_<name>.sql or NNNN_post_<name>.sql", file=file
        )
    content = file.read_bytes()
    text = content.decode("utf-8")
    up = _UP.search(text)
    if up is None:
        raise MigrationRefused(f"{file} has no line '-- migrate:up'", file=file)
    return Migration(
        name=file.name,
        number=int(name[1]),
        stage="pre" if name[2] == "pre" else "post",
        sql=_DOWN.sub("", text[up.end() :]).strip(),
        digest=hashlib.sha256(content).hexdigest(),
        in_transaction=up["bare"] is None,
    )


def _check_unchanged(migration: Migration, *, schema: str, digest: str | None) -> None:
    if digest is not None and digest != migration.digest:
        raise MigrationRefused(
            f"{migration.name} was edited after it was applied to {schema}; "
            "put it back as it was and write the change as a new migration",
            migration=migration.name,
            schema=schema,
            applied_digest=digest,
            file_digest=migration.digest,
        )


def _check_order(migration: Migration, *, schema: str, applied: Sequence[str]) -> None:
    marker = f"_{migration.stage}_"
    # pre and post files of one change are applied at different times, so each has its own order.
    passed = [name for name in applied if name[4:].startswith(marker)]
    newest = max(passed, default="")
    if int(newest[:4] or 0) >= migration.number:
        raise MigrationRefused(
            f"{migration.name} comes after {newest}, which {schema} has applied; "
            "give it the next free number",
            migration=migration.name,
            schema=schema,
            newest=newest,
        )
