"""What callers see when a part is away: typed errors in words, and nothing of the inside."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1 import catalog_pb2_grpc
from lehr.client import AsyncClient
from lehr.client.connection import Connection, Endpoint
from lehr.errors import Unavailable
from lehr.stack.ports import LOOPBACK
from tests.integration.catalog.test_datasets import chat, write
from tests.support.doors import FIRST_KEY, a_client
from tests.support.one_service import OneService


@pytest.fixture
def no_catalog(catalog: OneService) -> Iterator[None]:
    """The catalog is down for a test."""
    catalog.control.kill()
    yield
    catalog.control.start()


@pytest.fixture
def silent_catalog(catalog: OneService) -> Iterator[None]:
    """The catalog takes calls and answers none for a test."""
    catalog.control.pause()
    yield
    catalog.control.resume()


@pytest.fixture
async def connection(gateway: OneService) -> AsyncIterator[Connection]:
    """A bare connection."""
    opened = Connection(Endpoint(address=f"{LOOPBACK}:{gateway.port}", api_key=FIRST_KEY))
    yield opened
    await opened.close()


@pytest.mark.usefixtures("silent_catalog")
async def test_a_deadline_is_a_typed_error_that_may_be_tried_again(connection: Connection) -> None:
    stub = catalog_pb2_grpc.CatalogServiceStub(connection.channel)

    with pytest.raises(Unavailable) as late:
        await connection.call(stub.ListDatasets, pb.ListDatasetsRequest(), seconds=0.5)

    assert (late.value.reason, late.value.retryable) == ("DEADLINE_EXCEEDED", True)


@pytest.mark.usefixtures("no_catalog")
async def test_a_service_that_is_away_is_named_and_its_address_is_not(client: AsyncClient) -> None:
    with pytest.raises(Unavailable, match="the catalog does not answer") as away:
        await client.datasets.list()

    assert (away.value.reason, away.value.facts) == ("SERVICE_AWAY", {"service": "catalog"})
    assert LOOPBACK not in str(away.value)
    assert away.value.retry_in is not None


async def test_a_service_that_came_back_answers_again(
    client: AsyncClient, catalog: OneService
) -> None:
    catalog.control.kill()
    catalog.control.start()

    assert isinstance(await client.datasets.list(), list)


async def test_a_gateway_that_is_away_is_told_with_its_address() -> None:
    async with AsyncClient("127.0.0.1:1", "lehr_sk_x") as lonely:
        with pytest.raises(Unavailable, match=r"gateway at 127\.0\.0\.1:1 does not answer") as call:
            await lonely.keys.whoami()
        with pytest.raises(Unavailable, match="does not answer") as stream:
            await anext(lonely.events.tail())

    assert call.value.reason == stream.value.reason == "GATEWAY_AWAY"


async def test_a_stream_ends_with_a_typed_error_when_the_gateway_dies(
    gateway: OneService, tmp_path: Path
) -> None:
    since = datetime.now(UTC) - timedelta(seconds=1)
    async with a_client(gateway) as watcher:
        await watcher.datasets.upload(write(tmp_path, chat("seen", "a")), name="seen")
        events = watcher.events.tail(since=since)
        first = await anext(events)
        gateway.control.kill()
        try:
            with pytest.raises(Unavailable):
                await anext(events)
        finally:
            gateway.control.start()

        assert first["data"]["name"] == "seen"
        assert (await watcher.keys.whoami()).role == "operator"
