"""Three replicas of the allocator as real processes on one database."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import asyncpg
import pytest

from tests.integration.gpu_allocator.story import Allocator, NodeUnderTest
from tests.support.one_service import OneService, a_service
from tests.support.servers import NatsForTests
from tests.support.stack import DatabaseForTests

REPLICAS = 3


@pytest.fixture(scope="module")
def services(database: DatabaseForTests, nats_server: NatsForTests) -> Iterator[list[OneService]]:
    """The replicas; silence is borne for 20 s so that tests need not wait for longer."""
    environment = {
        "GPU_ALLOCATOR_DATABASE_URL": database.url("gpu_allocator"),
        "GPU_ALLOCATOR_LEASE_TTL": "20",
        "GPU_ALLOCATOR_UNSEEN_LIMIT": "25",
        "GPU_ALLOCATOR_LOST_LIMIT": "35",
        **nats_server.variables,
    }
    with ExitStack() as cleanup:
        yield [
            cleanup.enter_context(a_service("gpu_allocator", environment)) for _ in range(REPLICAS)
        ]


@pytest.fixture
async def allocator(
    services: list[OneService], database: DatabaseForTests
) -> AsyncIterator[Allocator]:
    """The allocator, knowing nothing yet."""
    admin = await asyncpg.connect(database.admin_url)
    made = Allocator(services=services, admin=admin)
    await made.clear()
    yield made
    await admin.close()


@pytest.fixture
async def node(allocator: Allocator) -> NodeUnderTest:
    """A node with one GPU that has spoken."""
    spoken = NodeUnderTest(allocator=allocator, name="alpha")
    await spoken.sync()
    return spoken
