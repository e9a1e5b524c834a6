"""The checkpoint store as a process with real Postgres, NATS and S3."""

from collections.abc import AsyncIterator, Iterator

import pytest

from lehr.objects import ObjectStore
from lehr.postgres import Database
from lehr.stack.ports import Ports
from tests.integration.checkpoint_store.story import Story
from tests.support.fakes_checkpoint_store import FakeScheduler, a_scheduler
from tests.support.one_service import OneService, a_service
from tests.support.servers import NatsForTests, ObjectsForTests
from tests.support.stack import DatabaseForTests


@pytest.fixture(scope="module")
def scheduler_port() -> Iterator[int]:
    """Where the store looks for the scheduler."""
    with Ports.claim({}) as ports:
        yield ports.port("scheduler")


@pytest.fixture(scope="module")
def scheduler(scheduler_port: int) -> Iterator[FakeScheduler]:
    """The scheduler that the store asks."""
    with a_scheduler(scheduler_port) as fake:
        yield fake


@pytest.fixture(scope="module")
def service(
    database: DatabaseForTests,
    nats_server: NatsForTests,
    s3: ObjectsForTests,
    scheduler: FakeScheduler,
    scheduler_port: int,
) -> Iterator[OneService]:
    """The store, impatient where a test would otherwise wait."""
    environment = {
        "CHECKPOINT_STORE_DATABASE_URL": database.url("checkpoint_store"),
        "CHECKPOINT_STORE_UPLOAD_URL_LIFETIME": "PT30S",
        "CHECKPOINT_STORE_DOWNLOAD_URL_LIFETIME": "PT3S",
        "CHECKPOINT_STORE_COLLECT_INTERVAL": "PT0.1S",
        "CHECKPOINT_STORE_SWEEP_INTERVAL": "PT0.5S",
        **nats_server.variables,
        **s3.variables,
    }
    addresses = {"scheduler": f"127.0.0.1:{scheduler_port}"}
    with a_service("checkpoint_store", environment, addresses=addresses) as running:
        yield running


@pytest.fixture
def objects(s3: ObjectsForTests) -> ObjectStore:
    """The bucket, to break things in it."""
    return ObjectStore(s3.endpoint, s3.access_key, s3.secret_key, s3.bucket, s3.region)


@pytest.fixture
async def admin(database: DatabaseForTests) -> AsyncIterator[Database]:
    """The database as its administrator sees it."""
    db = await Database.connect(database.admin_url, min_size=0, max_size=2)
    yield db
    await db.close()


@pytest.fixture
async def story(service: OneService, objects: ObjectStore, admin: Database) -> AsyncIterator[Story]:
    """A fresh job of the tenant acme, and who calls about it."""
    async with Story.begin(service, objects, admin) as begun:
        yield begun
