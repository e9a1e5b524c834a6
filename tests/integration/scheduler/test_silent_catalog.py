"""A catalog that does not answer is named to who plans a job."""

import asyncio
from typing import Any

import grpc.aio
import pytest

from lehr.api.catalog.v1.catalog_pb2_grpc import (
    CatalogServiceServicer,
    add_CatalogServiceServicer_to_server,
)
from services.scheduler import peers
from services.scheduler.peers import CatalogSilent, Peers
from tests.support.scheduler import a_spec


class Hanging(CatalogServiceServicer):
    """Takes a question and answers nothing."""

    async def ResolveTraining(self, request: Any, context: Any) -> Any:
        await asyncio.sleep(3600)


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_catalog_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(peers, "RESOLVE_SECONDS", 0.5)
    server = grpc.aio.server()
    add_CatalogServiceServicer_to_server(Hanging(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    if not is_there:
        await server.stop(None)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        asked = Peers(catalog=channel, allocator=channel, billing=channel, checkpoints=channel)
        with pytest.raises(CatalogSilent, match="the catalog did not answer"):
            await asked.resolve(a_spec())
    await server.stop(None)
