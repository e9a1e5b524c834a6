"""Billing as a process with real Postgres and NATS; its peers are fakes that a test fills."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lehr.postgres import Database
from lehr.stack.ports import Ports
from tests.integration.billing.story import Story
from tests.support.fakes_billing import FakeAllocator, FakeScheduler, peers_of_billing
from tests.support.one_service import OneService, a_service
from tests.support.servers import NatsForTests
from tests.support.stack import DatabaseForTests

RATES = """
currency: EUR
per_gpu_hour: {base: "3.60", slow: "0.96", fast: "3.84", three: "3.00", video: "1.80"}
"""

Peers = tuple[FakeAllocator, FakeScheduler, dict[str, str]]


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    """An allocator and a scheduler, and where they are."""
    with Ports.claim({}) as ports:
        allocator_port, scheduler_port = ports.port("allocator"), ports.port("scheduler")
    with peers_of_billing(allocator_port, scheduler_port) as (allocator, scheduler):
        addresses = {
            "gpu_allocator": f"127.0.0.1:{allocator_port}",
            "scheduler": f"127.0.0.1:{scheduler_port}",
        }
        yield allocator, scheduler, addresses


@pytest.fixture(scope="module")
def service(
    database: DatabaseForTests,
    nats_server: NatsForTests,
    peers: Peers,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OneService]:
    """Billing, impatient where a test would otherwise wait."""
    rates: Path = tmp_path_factory.mktemp("billing") / "rates.yaml"
    rates.write_text(RATES, encoding="utf-8")
    environment = {
        "BILLING_DATABASE_URL": database.url("billing"),
        "BILLING_RATES_FILE": str(rates),
        "BILLING_CHARGE_INTERVAL": "0.3",
        "BILLING_SWEEP_INTERVAL": "0.5",
        "BILLING_RECONCILE_PAUSE": "0.2",
        **nats_server.variables,
    }
    with a_service("billing", environment, addresses=peers[2]) as running:
        yield running


@pytest.fixture
async def admin(database: DatabaseForTests) -> AsyncIterator[Database]:
    """The database as its administrator sees it."""
    db = await Database.connect(database.admin_url, min_size=0, max_size=2)
    yield db
    await db.close()


@pytest.fixture
async def story(
    service: OneService, peers: Peers, admin: Database, nats_server: NatsForTests
) -> AsyncIterator[Story]:
    """A fresh job of a fresh tenant, and everybody who has to do with its money."""
    allocator, scheduler, _ = peers
    allocator.is_down = scheduler.is_down = False
    begun = Story.begin(
        service, allocator=allocator, scheduler=scheduler, admin=admin, nats=nats_server
    )
    async with begun as told:
        yield told
