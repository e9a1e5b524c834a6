"""Real NATS and Postgres for the tests of events."""

import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Literal

import asyncpg
import nats
import pytest
from nats.aio.client import Client

from lehr import faults
from lehr.events import connection, streams
from lehr.postgres import Database, bootstrap
from lehr.settings import PlatformSettings
from tests.integration.lehr.lib_servers import PostgresServer
from tests.integration.lehr_events.nats_server import NatsServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    folder = Path(tempfile.mkdtemp(prefix="lehr-pg-"))
    server = PostgresServer(folder)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture
async def database_url(postgres_server: PostgresServer) -> str:
    """The URL of a service's role in a database of its own for each test."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    admin = await asyncpg.connect(postgres_server.url("postgres"))
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    await bootstrap(
        postgres_server.url(name), passwords={"scheduler": "pw", "billing": "pw"}, migrations={}
    )
    return postgres_server.url(name, role="scheduler", password="pw")


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.connect(database_url, max_size=6)
    yield opened
    await opened.close()


@pytest.fixture
def bare_nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A server of its own for each test, without any stream."""
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def platform(bare_nats: NatsServer) -> PlatformSettings:
    return PlatformSettings(
        nats_url=bare_nats.url, nats_user=bare_nats.user, nats_password=bare_nats.password
    )


@pytest.fixture
async def client(platform: PlatformSettings) -> AsyncIterator[Client]:
    connected = await nats.connect(**connection.options(platform, name="test"))
    yield connected
    await connected.close()


@pytest.fixture
async def bus(client: Client) -> Client:
    """A connection to a server that has the declared streams."""
    await streams.apply(client, streams.declared())
    return client


@pytest.fixture
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that arms a fault point of this process and returns the faults file."""
    file = tmp_path / "faults.json"
    file.write_text("{}", encoding="utf-8")
    monkeypatch.setenv("LEHR_TEST_HOOKS", "true")
    monkeypatch.setenv("LEHR_FAULTS_FILE", str(file))

    def arm(name: str, *, action: Literal["error", "kill"], times: int) -> Path:
        faults.arm(file, name, action=action, times=times)
        return file

    return arm
