"""The scheduler as a process with real Postgres and NATS, and hand-written services around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from lehr.postgres import Database
from tests.integration.scheduler.story import Story
from tests.support.fakes_scheduler import FakePeers, fake_peers
from tests.support.one_service import OneService, a_service
from tests.support.servers import NatsForTests
from tests.support.stack import DatabaseForTests


@pytest.fixture(scope="module")
def peers() -> Iterator[FakePeers]:
    """The services that the scheduler calls."""
    with fake_peers() as served:
        served.reset()
        yield served


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    """Settings of the scheduler; a module may say other ones."""
    return {
        "SCHEDULER_CYCLE_SECONDS": "0.2",
        # Once at start, so that what a test sees came by an event.
        "SCHEDULER_SWEEP_SECONDS": "3600",
        "SCHEDULER_BACKOFF_SECONDS": "0.2",
    }


@pytest.fixture(scope="module")
def service(
    database: DatabaseForTests,
    nats_server: NatsForTests,
    peers: FakePeers,
    variables: dict[str, str],
) -> Iterator[OneService]:
    """The scheduler."""
    environment = {
        "SCHEDULER_DATABASE_URL": database.url("scheduler"),
        **nats_server.variables,
        **variables,
    }
    with a_service("scheduler", environment, addresses=peers.addresses) as running:
        yield running


@pytest.fixture
async def admin(database: DatabaseForTests) -> AsyncIterator[Database]:
    """The database as its administrator sees it."""
    db = await Database.connect(database.admin_url, min_size=0, max_size=2)
    yield db
    await db.close()


@pytest.fixture
async def story(
    service: OneService, peers: FakePeers, admin: Database, nats_server: NatsForTests
) -> AsyncIterator[Story]:
    """A user of the tenant acme, an empty queue, and full stocks."""
    async with Story.begin(service, peers, admin, nats_server) as begun:
        yield begun
