"""The catalog behind a gateway, with real Postgres, NATS and S3."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lehr.client import AsyncClient
from tests.support.doors import a_client, a_gateway
from tests.support.one_service import OneService, a_service
from tests.support.servers import NatsForTests, ObjectsForTests
from tests.support.stack import DatabaseForTests
from tests.support.toy_model import write_toy_model


@pytest.fixture(scope="module")
def catalog(
    database: DatabaseForTests, nats_server: NatsForTests, s3: ObjectsForTests
) -> Iterator[OneService]:
    """The catalog."""
    environment = {
        "CATALOG_DATABASE_URL": database.url("catalog"),
        **nats_server.variables,
        **s3.variables,
    }
    with a_service("catalog", environment) as running:
        yield running


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
