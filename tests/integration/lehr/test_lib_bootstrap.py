"""Bootstrap against a real Postgres: repeatable, parallel, and strict about what was applied."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from lehr.errors import InvalidArgument
from lehr.postgres import Database, bootstrap
from lehr.postgres.migrate import MigrationRefused
from tests.integration.lehr.lib_servers import PostgresServer

PASSWORDS = {"scheduler": "scheduler-pw", "billing": "billing-pw"}

JOBS = """-- migrate:up
CREATE TABLE jobs (job_id text PRIMARY KEY, n bigint GENERATED ALWAYS AS IDENTITY);
-- migrate:down
DROP TABLE jobs;
"""
LEDGER = """-- migrate:up
SET lock_timeout = '2s';
CREATE TABLE ledger (entry_id text PRIMARY KEY, place int4range);
ALTER TABLE ledger ADD EXCLUDE USING gist (entry_id WITH =, place WITH &&);
REVOKE UPDATE, DELETE ON ledger FROM billing;
"""


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Migration folders of two services, and of what they share."""
    files = {
        "scheduler/0001_pre_jobs.sql": JOBS,
        "billing/0001_pre_ledger.sql": LEDGER,
        "shared/0001_pre_outbox.sql": "-- migrate:up\nCREATE TABLE outbox (n int);\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content, encoding="utf-8")
    return {name: tmp_path / name for name in ("scheduler", "billing", "shared")}


async def _bootstrap(
    url: str, folders: dict[str, Path], *, test_hooks: bool = False
) -> dict[str, list[str]]:
    return await bootstrap(
        url,
        passwords=PASSWORDS,
        test_hooks=test_hooks,
        migrations=folders,
        shared_migrations=folders["shared"],
    )


RoleUrl = Callable[[str], str]


@pytest.fixture
def as_role(admin_url: str, postgres_server: PostgresServer) -> RoleUrl:
    name = admin_url.rpartition("/")[2]
    return lambda role: postgres_server.url(name, role=role, password=PASSWORDS[role])


async def test_each_service_gets_the_shared_tables_and_then_its_own(
    admin_url: str, folders: dict[str, Path]
) -> None:
    applied = await _bootstrap(admin_url, folders)

    assert applied == {
        "scheduler": ["0001_pre_outbox.sql", "0001_pre_jobs.sql"],
        "billing": ["0001_pre_outbox.sql", "0001_pre_ledger.sql"],
    }


async def test_a_second_bootstrap_does_nothing(admin_url: str, folders: dict[str, Path]) -> None:
    await _bootstrap(admin_url, folders)

    assert await _bootstrap(admin_url, folders) == {"scheduler": [], "billing": []}


async def test_two_at_once_apply_each_file_once(admin_url: str, folders: dict[str, Path]) -> None:
    slow = folders["shared"] / "0001_pre_outbox.sql"
    slow.write_text("-- migrate:up\nSELECT pg_sleep(0.3); CREATE TABLE outbox ();", "utf-8")

    results = await asyncio.gather(*(_bootstrap(admin_url, folders) for _ in range(4)))

    names = sorted(name for result in results for names in result.values() for name in names)
    assert names == [
        "0001_pre_jobs.sql",
        "0001_pre_ledger.sql",
        "0001_pre_outbox.sql",
        "0001_pre_outbox.sql",
    ]


async def test_databases_of_one_server_are_bootstrapped_at_once(
    postgres_server: PostgresServer, admin_url: str, folders: dict[str, Path]
) -> None:
    names = [f"{admin_url.rpartition('/')[2]}_{number}" for number in range(4)]
    connection = await asyncpg.connect(admin_url)
    for name in names:
        await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()

    results = await asyncio.gather(
        *(_bootstrap(postgres_server.url(name), folders) for name in names)
    )

    assert [len(result["billing"]) for result in results] == [2, 2, 2, 2]


async def test_a_role_uses_its_tables_without_naming_its_schema(
    admin_url: str, folders: dict[str, Path], as_role: RoleUrl
) -> None:
    await _bootstrap(admin_url, folders)
    database = await Database.connect(as_role("scheduler"))

    async with database.transaction() as connection:
        await connection.execute("INSERT INTO jobs (job_id) VALUES ('j1')")
        await connection.execute("UPDATE jobs SET job_id = 'j2'")
        found = await connection.fetchval("SELECT job_id FROM jobs")
        await connection.execute("DELETE FROM jobs")
    await database.close()

    assert found == "j2"


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE mine (n int)",
        "DROP TABLE jobs",
        "ALTER TABLE jobs ADD COLUMN x int",
        "TRUNCATE jobs",
        "SELECT count(*) FROM billing.ledger",
        "UPDATE schema_migrations SET digest = ''",
        "CREATE TABLE public.mine (n int)",
        "CREATE TEMPORARY TABLE mine (n int)",
    ],
)
async def test_a_role_may_not(
    admin_url: str, folders: dict[str, Path], as_role: RoleUrl, statement: str
) -> None:
    await _bootstrap(admin_url, folders)
    connection = await asyncpg.connect(as_role("scheduler"))

    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute(statement)

    await connection.close()


async def test_what_a_migration_took_back_stays_taken_after_another_bootstrap(
    admin_url: str, folders: dict[str, Path], as_role: RoleUrl
) -> None:
    await _bootstrap(admin_url, folders)
    await _bootstrap(admin_url, folders)
    connection = await asyncpg.connect(as_role("billing"))

    await connection.execute("INSERT INTO ledger VALUES ('e1', '[1,3)')")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute("UPDATE ledger SET entry_id = 'e2'")

    await connection.close()


async def test_every_role_reads_the_clock_and_it_cannot_be_moved_without_test_hooks(
    admin_url: str, folders: dict[str, Path], as_role: RoleUrl
) -> None:
    await _bootstrap(admin_url, folders, test_hooks=True)
    await _bootstrap(admin_url, folders, test_hooks=False)
    connection = await asyncpg.connect(as_role("billing"))

    behind = await connection.fetchval("SELECT clock_timestamp() - clock.now()")
    shift = await connection.fetchval("SELECT to_regclass('clock.shift')")
    await connection.close()

    assert abs(behind.total_seconds()) < 1
    assert shift is None


async def test_with_test_hooks_the_administrator_moves_the_clock_of_every_role(
    admin_url: str, folders: dict[str, Path], as_role: RoleUrl
) -> None:
    await _bootstrap(admin_url, folders, test_hooks=True)
    admin = await asyncpg.connect(admin_url)
    await admin.execute("UPDATE clock.shift SET amount = '90 minutes'")
    await admin.close()
    connection = await asyncpg.connect(as_role("billing"))

    ahead = await connection.fetchval("SELECT clock.now() - clock_timestamp()")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute("UPDATE clock.shift SET amount = '0'")
    await connection.close()

    assert 5399 < ahead.total_seconds() < 5401


async def test_a_new_password_replaces_the_old(
    admin_url: str, folders: dict[str, Path], postgres_server: PostgresServer
) -> None:
    name = admin_url.rpartition("/")[2]
    await _bootstrap(admin_url, folders)
    await bootstrap(admin_url, passwords={"catalog": "first"}, migrations={})
    await bootstrap(admin_url, passwords={"catalog": "second"}, migrations={})

    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(postgres_server.url(name, role="catalog", password="first"))
    connection = await asyncpg.connect(postgres_server.url(name, role="catalog", password="second"))
    await connection.close()


async def test_a_file_that_was_edited_after_it_was_applied_is_refused(
    admin_url: str, folders: dict[str, Path]
) -> None:
    await _bootstrap(admin_url, folders)
    (folders["scheduler"] / "0001_pre_jobs.sql").write_text(JOBS + "\n-- more", encoding="utf-8")

    with pytest.raises(MigrationRefused, match=r"0001_pre_jobs\.sql was edited"):
        await _bootstrap(admin_url, folders)


async def test_a_file_with_a_number_that_is_passed_is_refused(
    admin_url: str, folders: dict[str, Path]
) -> None:
    later = folders["scheduler"] / "0003_pre_later.sql"
    later.write_text("-- migrate:up\nCREATE TABLE later (n int);", encoding="utf-8")
    await _bootstrap(admin_url, folders)
    earlier = folders["scheduler"] / "0002_pre_earlier.sql"
    earlier.write_text("-- migrate:up\nCREATE TABLE earlier (n int);", encoding="utf-8")

    with pytest.raises(MigrationRefused, match="next free number"):
        await _bootstrap(admin_url, folders)


async def test_a_file_that_fails_leaves_nothing_of_itself_and_may_be_corrected(
    admin_url: str, folders: dict[str, Path]
) -> None:
    file = folders["scheduler"] / "0002_pre_half.sql"
    file.write_text("-- migrate:up\nCREATE TABLE half (n int); SELECT nonsense;", encoding="utf-8")
    with pytest.raises(asyncpg.UndefinedColumnError):
        await _bootstrap(admin_url, folders)
    file.write_text("-- migrate:up\nCREATE TABLE half (n int);", encoding="utf-8")

    applied = await _bootstrap(admin_url, folders)

    assert applied["scheduler"] == ["0002_pre_half.sql"]


async def test_an_index_is_built_concurrently_while_another_bootstrap_waits(
    admin_url: str, folders: dict[str, Path]
) -> None:
    file = folders["scheduler"] / "0002_pre_index.sql"
    file.write_text(
        "-- migrate:up transaction:false\nCREATE INDEX CONCURRENTLY jobs_n ON jobs (n);",
        encoding="utf-8",
    )

    async with asyncio.timeout(60):
        results = await asyncio.gather(*(_bootstrap(admin_url, folders) for _ in range(3)))

    assert sum("0002_pre_index.sql" in result["scheduler"] for result in results) == 1


async def test_a_name_that_cannot_be_a_schema_is_refused(admin_url: str) -> None:
    with pytest.raises(InvalidArgument, match="clock, x; DROP"):
        await bootstrap(admin_url, passwords={"clock": "pw", "x; DROP": "pw"})


async def test_the_command_prepares_a_server_from_a_file_of_passwords(
    admin_url: str, tmp_path: Path, as_role: RoleUrl
) -> None:
    file = tmp_path / "passwords.json"
    file.write_text(json.dumps(PASSWORDS), encoding="utf-8")

    command = [sys.executable, "-m", "lehr.postgres", "--passwords", str(file)]
    result = await asyncio.to_thread(
        subprocess.run,
        [*command, "--admin-url", admin_url, "--service", "billing"],
        capture_output=True,
        text=True,
        check=False,
    )
    connection = await asyncpg.connect(as_role("billing"))
    await connection.close()

    assert (result.returncode, result.stdout[:8]) == (0, "billing:"), result.stderr
