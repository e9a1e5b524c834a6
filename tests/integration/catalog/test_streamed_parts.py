"""Parts by stream: the same rules as for signed addresses, told in words."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1 import catalog_pb2_grpc, upload_pb2
from lehr.client import AsyncClient, transfer
from lehr.client.connection import Connection, Endpoint
from lehr.errors import FailedPrecondition, InvalidArgument, NotFound
from lehr.objects import ObjectStore
from lehr.stack.ports import LOOPBACK
from tests.integration.catalog.test_datasets import chat, write
from tests.support.doors import FIRST_KEY, a_client
from tests.support.one_service import OneService


@pytest.fixture
async def connection(gateway: OneService) -> AsyncIterator[Connection]:
    """A bare connection."""
    opened = Connection(Endpoint(address=f"{LOOPBACK}:{gateway.port}", api_key=FIRST_KEY))
    yield opened
    await opened.close()


@pytest.fixture
def send(connection: Connection) -> Callable[..., Any]:
    """Stream a part: its target and then its pieces."""
    stub = catalog_pb2_grpc.CatalogServiceStub(connection.channel)

    async def stream(target: upload_pb2.UploadPartTarget | None, *chunks: bytes) -> Any:
        async def steps() -> AsyncIterator[upload_pb2.UploadPartRequest]:
            if target is not None:
                yield upload_pb2.UploadPartRequest(target=target)
            for chunk in chunks:
                yield upload_pb2.UploadPartRequest(chunk=chunk)

        return await connection.call(stub.UploadPart, steps())

    return stream


async def announced(connection: Connection, path: Path, name: str) -> pb.AddDatasetResponse:
    """Register a dataset and return what is missing of it."""
    stub = catalog_pb2_grpc.CatalogServiceStub(connection.channel)
    request = pb.AddDatasetRequest(name=name, files=[transfer.describe(path)])
    answer: pb.AddDatasetResponse = await connection.call(stub.AddDataset, request)
    return answer


def target(dataset_id: str, name: str, number: int = 0) -> upload_pb2.UploadPartTarget:
    """Return where a part goes."""
    return upload_pb2.UploadPartTarget(entry_id=dataset_id, file_name=name, number=number)


async def test_a_part_by_stream_is_no_longer_missing(
    connection: Connection, send: Any, client: AsyncClient, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("streamed", "a"))
    first = await announced(connection, path, "streamed")
    content = path.read_bytes()

    answer = await send(target(first.dataset_id, path.name), content[:5], b"", content[5:])
    second = await announced(connection, path, "streamed")
    dataset = await client.datasets.settled(first.dataset_id)

    assert answer.size_bytes == len(content)
    assert len(first.uploads) == 1
    assert not second.uploads
    assert dataset.state == pb.ENTRY_STATE_READY


async def test_a_part_of_another_size_is_refused_and_not_stored(
    connection: Connection, send: Any, store: ObjectStore, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("sizes", "a"))
    added = await announced(connection, path, "sizes")
    content = path.read_bytes()

    for chunks in ([content[:-1]], [content, b"x"], [], [b"x" * (2**20 + 1)]):
        with pytest.raises(InvalidArgument, match=f"has {len(content)} bytes"):
            await send(target(added.dataset_id, path.name), *chunks)

    assert await store.list(f"uploads/default/{added.dataset_id}/") == ()


async def test_a_part_that_nobody_awaits_is_refused_in_words(
    connection: Connection, send: Any, client: AsyncClient, gateway: OneService, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("awaited", "a"))
    added = await announced(connection, path, "awaited")
    mine, content = added.dataset_id, path.read_bytes()

    with pytest.raises(InvalidArgument, match="no such part"):
        await send(target(mine, path.name, 1), content)
    with pytest.raises(InvalidArgument, match="not announced"):
        await send(target(mine, "../other"), content)
    with pytest.raises(InvalidArgument, match="must be the target"):
        await send(None, content)
    with pytest.raises(InvalidArgument):
        await send(target("ds_\0", path.name), content)
    with pytest.raises(NotFound):
        await send(target("ds_" + "0" * 26, path.name), content)
    await client.datasets.upload(path, name="awaited")
    with pytest.raises(FailedPrecondition, match="awaits no parts"):
        await send(target(mine, path.name), content)


async def test_a_part_for_another_tenants_dataset_is_answered_like_an_unknown_one(
    connection: Connection, client: AsyncClient, gateway: OneService, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("foreign", "a"))
    added = await announced(connection, path, "foreign")
    made = await client.keys.create("acme", tenant="acme")

    async with a_client(gateway, made.secret) as stranger:
        stub = catalog_pb2_grpc.CatalogServiceStub(stranger.datasets._connection.channel)

        async def steps() -> AsyncIterator[upload_pb2.UploadPartRequest]:
            yield upload_pb2.UploadPartRequest(target=target(added.dataset_id, path.name))
            yield upload_pb2.UploadPartRequest(chunk=path.read_bytes())

        with pytest.raises(NotFound, match="there is no dataset"):
            await stranger.datasets._connection.call(stub.UploadPart, steps())
