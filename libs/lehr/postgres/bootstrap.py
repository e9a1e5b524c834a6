"""Makes an empty Postgres database ready for every service, and an old one current."""

import asyncio
import importlib.util
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg

from lehr.errors import FieldViolation, InvalidArgument
from lehr.logs import get_logger
from lehr.postgres.database import OwnConnection
from lehr.postgres.failures import DRIVER_ERRORS, DatabaseUnavailable, meaning
from lehr.postgres.migrate import STAGES, Stage, apply, read_migrations
from lehr.postgres.passwords import scram_verifier
from lehr.postgres.queries import Queries

SHARED_MIGRATIONS = Path(__file__).parents[1] / "events" / "migrations"
"""Outbox and inbox, which every service has in its own schema."""

LOCK_KEY = 0x6C656872
"""Advisory lock of a database while it is changed; the letters of the product's name."""

LOCK_SECONDS = 120.0
_LOOK_AGAIN_SECONDS = 0.1
_ROLE_ATTEMPTS = 20

_ROLE = re.compile(r"[a-z][a-z0-9_]{0,62}")
# Two bootstraps of different databases change the same roles; the later one asks again.
_ROLE_CONFLICTS = (asyncpg.UniqueViolationError, asyncpg.InternalServerError)

_log = get_logger(__name__)
_queries = Queries.load(Path(__file__).with_name("queries.sql"))


async def bootstrap(
    admin_url: str,
    *,
    passwords: Mapping[str, str],
    test_hooks: bool = False,
    migrations: Mapping[str, Path] | None = None,
    shared_migrations: Path = SHARED_MIGRATIONS,
    stages: frozenset[Stage] = STAGES,
) -> dict[str, list[str]]:
    """Give every service its role, schema and tables, and return the migrations applied to each.

    May be repeated, and by two at once: the second waits and finds the work done.
    ``passwords`` names the services; ``migrations`` gives their folders, by default those beside
    the services' code. A migration runs as the administrator with the schema as search path; the
    role gets rows of every table, unless a migration takes that back.

    Raises:
        MigrationRefused: files and database contradict each other.
        DatabaseUnavailable: no server, or another bootstrap that does not end.
    """
    _check_names(passwords)
    folders = service_migrations(passwords) if migrations is None else migrations
    async with _admin(admin_url) as admin:
        await _lock(admin)
        await _prepare(admin, passwords, test_hooks=test_hooks)
        applied: dict[str, list[str]] = {}
        for service in passwords:
            sources = {"shared": shared_migrations, "service": folders.get(service)}
            applied[service] = await _migrate(admin, service, sources, stages=stages)
        return applied


def service_migrations(services: Iterable[str]) -> dict[str, Path]:
    """Return the migration folder of each service of this installation, existing or not."""
    spec = importlib.util.find_spec("services")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    if not places:
        return {}
    return {name: Path(places[0]) / name / "storage" / "migrations" for name in services}


@asynccontextmanager
async def _admin(url: str) -> AsyncIterator[OwnConnection]:
    """Open one session, whose end gives back every lock."""
    try:
        connection = await asyncpg.connect(url, timeout=10)
    except DRIVER_ERRORS as error:
        # The URL holds a password, so only the kind of the failure is told.
        failure = type(error).__name__
        raise DatabaseUnavailable(
            f"cannot log in to Postgres as administrator ({failure}); "
            "check the URL, and that the server runs",
            failure=failure,
        ) from error
    try:
        yield connection
    except DRIVER_ERRORS as error:
        unavailable = meaning(error, connection_lost=connection.is_closed())
        if unavailable is None:
            raise
        raise unavailable from error
    finally:
        with suppress(*DRIVER_ERRORS):
            await connection.close(timeout=5)


async def _lock(admin: OwnConnection) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LOCK_SECONDS
    while not await admin.fetchval(_queries["try_lock"], LOCK_KEY):
        if loop.time() > deadline:
            raise DatabaseUnavailable(
                f"another process has been changing this database for {LOCK_SECONDS:.0f} s; "
                "look for it, or ask again",
                lock_key=LOCK_KEY,
            )
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)


async def _prepare(
    admin: OwnConnection,
    passwords: Mapping[str, str],
    *,
    test_hooks: bool,
) -> None:
    """Make roles, clock and schemas; everything here may run again."""
    for service, password in passwords.items():
        await _make_role(admin, service, scram_verifier(password))
    database = await admin.fetchval(_queries["quoted_database"])
    await admin.execute(_queries["close_database"].format(database=database))
    await admin.execute(_queries["create_movable_clock" if test_hooks else "create_clock"])
    for service in passwords:
        names = {"schema": service, "role": service, "database": database}
        await admin.execute(_queries["create_schema"].format(**names))
        await _retried(admin, _queries["grant_schema"].format(**names))
        if test_hooks:
            await admin.execute(_queries["grant_shift"].format(**names))


async def _make_role(admin: OwnConnection, role: str, verifier: str) -> None:
    if not await admin.fetchval(_queries["role_exists"], role):
        with suppress(asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
            await admin.execute(_queries["create_role"].format(role=role))
    await _retried(admin, _queries["set_password"].format(role=role, verifier=verifier))
    await _retried(admin, _queries["set_role_limits"].format(role=role))


async def _retried(admin: OwnConnection, statements: str) -> None:
    """Run statements about roles, which another database's bootstrap may touch at this moment."""
    for _ in range(_ROLE_ATTEMPTS - 1):
        try:
            await admin.execute(statements)
        except _ROLE_CONFLICTS as error:
            _log.warning("role_changed_by_another", failure=type(error).__name__)
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        else:
            return
    await admin.execute(statements)


async def _migrate(
    admin: OwnConnection,
    service: str,
    sources: Mapping[str, Path | None],
    *,
    stages: frozenset[Stage],
) -> list[str]:
    applied: list[str] = []
    for source, folder in sources.items():
        migrations = [] if folder is None else read_migrations(folder)
        applied += await apply(
            admin, schema=service, source=source, migrations=migrations, stages=stages
        )
    return applied


def _check_names(passwords: Mapping[str, str]) -> None:
    wrong = [
        FieldViolation(field=name, description="must be lower_snake case, to be a role and schema")
        for name in passwords
        if not _ROLE.fullmatch(name) or name in {"clock", "public"} or name.startswith("pg_")
    ]
    if wrong:
        names = ", ".join(violation.field for violation in wrong)
        raise InvalidArgument(f"not names of services: {names}", fields=wrong, names=names)
