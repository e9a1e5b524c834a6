"""One stack a module, with a toy model and a small dataset in its catalog."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lehr.client import AsyncClient
from tests.e2e.world import DATASET, MODEL, World, write_chats
from tests.support.stack import StackUnderTest
from tests.support.toy_model import write_toy_model


@pytest.fixture(scope="module")
def stocked(stack: StackUnderTest, tmp_path_factory: pytest.TempPathFactory) -> StackUnderTest:
    """The stack with a model and a dataset."""
    folder = tmp_path_factory.mktemp("stock")
    asyncio.run(stock(stack, folder))
    return stack


@pytest.fixture
async def world(stocked: StackUnderTest) -> AsyncIterator[World]:
    """The stack as its first tenant sees it."""
    async with AsyncClient(stocked.status().gateway, stocked.api_key) as client:
        yield World(stack=stocked, client=client)


async def stock(stack: StackUnderTest, folder: Path) -> None:
    """Put the toy model and the chats into the catalog."""
    async with AsyncClient(stack.status().gateway, stack.api_key) as client:
        await client.models.add(write_toy_model(folder / "model"), name=MODEL, license="Apache-2.0")
        await client.datasets.upload(write_chats(folder / "chats.jsonl"), name=DATASET)
