"""Live events: the tenant's own, all of them, and nobody else's."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lehr.client import AsyncClient
from lehr.errors import NotFound
from tests.integration.catalog.test_datasets import chat, write
from tests.support.doors import a_client
from tests.support.one_service import OneService


@pytest.fixture
async def stranger(gateway: OneService, client: AsyncClient) -> AsyncIterator[AsyncClient]:
    """A client of the tenant acme."""
    made = await client.keys.create("acme", tenant="acme")
    async with a_client(gateway, made.secret) as connected:
        yield connected


async def next_event(client: AsyncClient, **filters: Any) -> dict[str, Any]:
    """Return the next event of a tail."""
    async with asyncio.timeout(20):
        async for event in client.events.tail(**filters):
            return event
    raise AssertionError("the tail ended")


async def test_an_event_of_the_past_is_read_again(client: AsyncClient, tmp_path: Path) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    uploaded = await client.datasets.upload(write(tmp_path, chat("past", "a")), name="past")

    event = await next_event(client, types=["lehr.dataset."], since=before)

    assert event["type"] == "lehr.dataset.added.v1"
    assert event["subject"] == uploaded.dataset.dataset_id
    assert (event["specversion"], event["object"], event["tenant"]) == ("1.0", "event", "default")


async def test_events_of_another_tenant_are_not_seen(
    client: AsyncClient, stranger: AsyncClient, tmp_path: Path
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    await client.datasets.upload(write(tmp_path, chat("mine", "a")), name="mine")
    await stranger.datasets.upload(write(tmp_path, chat("theirs", "a")), name="theirs")

    seen = await next_event(stranger, since=before)

    assert seen["data"]["name"] == "theirs"


async def test_datasets_of_another_tenant_look_as_if_they_were_not_there(
    client: AsyncClient, stranger: AsyncClient, tmp_path: Path
) -> None:
    mine = await client.datasets.upload(write(tmp_path, chat("own", "a")), name="own")

    with pytest.raises(Exception, match="no dataset") as by_id:
        await stranger.datasets.inspect(mine.dataset.dataset_id)
    with pytest.raises(Exception, match="no dataset") as by_name:
        await stranger.datasets.inspect("own")

    assert by_id.type is by_name.type
    assert [one.name for one in await stranger.datasets.list()] in ([], ["theirs"])


async def test_models_of_another_tenant_look_as_if_they_were_not_there(
    client: AsyncClient, stranger: AsyncClient, toy_model: Path, tmp_path: Path
) -> None:
    mine = await client.models.add(toy_model, name="own-model", license="MIT")
    await stranger.datasets.upload(write(tmp_path, chat("q", "a")), name="rows")

    for reference in (mine.model_id, "own-model", f"own-model@{mine.revision}"):
        with pytest.raises(NotFound, match="no model"):
            await stranger.models.get(reference)
        with pytest.raises(NotFound, match="no model"):
            await stranger.datasets.preview("rows", model=reference)

    assert await stranger.models.list() == []


async def test_projects_of_one_tenant_are_apart(
    gateway: OneService, client: AsyncClient, tmp_path: Path
) -> None:
    mine = await client.datasets.upload(write(tmp_path, chat("p", "a")), name="of-default")
    made = await client.keys.create("other", project="other")

    async with a_client(gateway, made.secret) as other:
        with pytest.raises(NotFound):
            await other.datasets.inspect(mine.dataset.dataset_id)
        with pytest.raises(NotFound):
            await other.datasets.inspect("of-default")
        theirs = await other.datasets.upload(write(tmp_path, chat("p", "a")), name="of-default")

    assert theirs.dataset.dataset_id != mine.dataset.dataset_id
