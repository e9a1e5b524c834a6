"""Telemetry as a process with real Postgres and NATS."""

from collections.abc import AsyncIterator, Iterator

import pytest

from lehr.postgres import Database
from tests.integration.telemetry.story import Story
from tests.support.one_service import OneService, a_service
from tests.support.servers import NatsForTests
from tests.support.stack import DatabaseForTests


@pytest.fixture(scope="module")
def service(database: DatabaseForTests, nats_server: NatsForTests) -> Iterator[OneService]:
    """The process; missing log lines are waited for a long time, by a clock that tests can move."""
    environment = {
        "TELEMETRY_DATABASE_URL": database.url("telemetry"),
        "TELEMETRY_LOG_GAP_PATIENCE": "PT30M",
        **nats_server.variables,
    }
    with a_service("telemetry", environment) as running:
        yield running


@pytest.fixture
async def admin(database: DatabaseForTests) -> AsyncIterator[Database]:
    """The database as its administrator sees it."""
    db = await Database.connect(database.admin_url, min_size=0, max_size=2)
    yield db
    await db.close()


@pytest.fixture
async def story(
    service: OneService, nats_server: NatsForTests, admin: Database
) -> AsyncIterator[Story]:
    """A fresh job of the tenant acme, its runner, and a reader."""
    async with Story.begin(service, nats_server, admin) as begun:
        yield begun
