"""A catalog that imports from a hub of the tests' own."""

from collections.abc import Iterator

import pytest

from tests.support.hub_stub import HubStub, a_hub
from tests.support.importing import an_importing_catalog
from tests.support.one_service import OneService
from tests.support.servers import NatsForTests, ObjectsForTests
from tests.support.stack import DatabaseForTests


@pytest.fixture(scope="module")
def hub() -> Iterator[HubStub]:
    """The hub."""
    with a_hub() as running:
        yield running


@pytest.fixture(scope="module")
def catalog(
    database: DatabaseForTests, nats_server: NatsForTests, s3: ObjectsForTests, hub: HubStub
) -> Iterator[OneService]:
    """The catalog in place of the ordinary one."""
    with an_importing_catalog(database, nats_server, s3, hub) as running:
        yield running
