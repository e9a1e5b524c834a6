"""Real servers for the tests of the shared library."""

import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from lehr.objects import ObjectStore
from lehr.postgres import Database
from tests.integration.lehr.lib_servers import ObjectServer, PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    # Not pytest's own folders: nobody may not enter them.
    folder = Path(tempfile.mkdtemp(prefix="lehr-pg-"))
    server = PostgresServer(folder)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture
async def admin_url(postgres_server: PostgresServer) -> str:
    """An empty database of its own for each test."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    connection = await asyncpg.connect(postgres_server.url("postgres"))
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return postgres_server.url(name)


@pytest.fixture
async def database(admin_url: str) -> AsyncIterator[Database]:
    opened = await Database.connect(admin_url, max_size=4)
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    server = ObjectServer(tmp_path_factory.mktemp("s3"))
    (server.folder / "objects").mkdir()
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def objects(object_server: ObjectServer) -> ObjectStore:
    store = object_server.store()
    await store.ensure_bucket()
    return store
