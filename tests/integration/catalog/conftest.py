"""The catalog behind a gateway, with real Postgres, NATS and S3."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lehr.api.catalog.v1.catalog_pb2_grpc import CatalogServiceStub
from lehr.client import AsyncClient
from lehr.client.connection import Connection, Endpoint
from lehr.faults import plan as plans
from lehr.objects import ObjectStore
from lehr.stack.ports import LOOPBACK
from tests.support.doors import FIRST_KEY, a_client, a_gateway
from tests.support.one_service import OneService, a_service
from tests.support.servers import NatsForTests, ObjectsForTests
from tests.support.stack import DatabaseForTests
from tests.support.targets import Target, a_target
from tests.support.toy_model import write_toy_model

PART_BYTES = 2**20
"""Small, so that files of a few megabytes have several parts."""


@pytest.fixture(scope="module")
def catalog_variables(
    database: DatabaseForTests, nats_server: NatsForTests, s3: ObjectsForTests
) -> dict[str, str]:
    """Settings of a catalog, the same for every replica."""
    return {
        "CATALOG_DATABASE_URL": database.url("catalog"),
        "CATALOG_PART_BYTES": str(PART_BYTES),
        "CATALOG_CLAIM_LIFETIME": "PT3S",
        **nats_server.variables,
        **s3.variables,
    }


@pytest.fixture(scope="module")
def catalog(catalog_variables: dict[str, str]) -> Iterator[OneService]:
    """The catalog."""
    with a_service("catalog", catalog_variables) as running:
        yield running


@pytest.fixture(scope="module")
def store(s3: ObjectsForTests) -> ObjectStore:
    """What lies behind the catalog."""
    return ObjectStore(s3.endpoint, s3.access_key, s3.secret_key, s3.bucket, s3.region)


@pytest.fixture(scope="module")
def gateway(
    database: DatabaseForTests, nats_server: NatsForTests, catalog: OneService
) -> Iterator[OneService]:
    """The door to it."""
    with a_gateway(database, nats_server, {"catalog": catalog}) as running:
        yield running


@pytest.fixture
async def client(gateway: OneService) -> AsyncIterator[AsyncClient]:
    """A client of tenant and project ``default``."""
    async with a_client(gateway) as connected:
        yield connected


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with the toy tokenizer."""
    return write_toy_model(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture
async def call(gateway: OneService) -> AsyncIterator[Callable[..., Any]]:
    """Call a method of the catalog with a message of one's own."""
    connection = Connection(Endpoint(address=f"{LOOPBACK}:{gateway.port}", api_key=FIRST_KEY))
    stub = CatalogServiceStub(connection.channel)

    async def ask(method: str, request: Any) -> Any:
        return await connection.call(getattr(stub, method), request)

    yield ask
    await connection.close()


@pytest.fixture
def nothing_armed(catalog: OneService) -> Iterator[None]:
    """Fault points are disarmed after each test."""
    yield
    plans.disarm(catalog.faults)


@pytest.fixture
def internal() -> Iterator[Target]:
    """A server in the network that must stay untouched."""
    with a_target() as target:
        yield target
