"""Uploads to the catalog: what is missing is sent, again after an interruption, then checked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1 import catalog_pb2_grpc, upload_pb2
from lehr.client import transfer
from lehr.client.connection import LONG_CALL_SECONDS, Connection
from lehr.errors import PlatformError, Unavailable

PATIENCE_SECONDS = 60.0
"""How long a catalog that is away is waited for while it checks something."""

LOOK_SECONDS = 0.5
"""Pause between two looks at how far a check is."""

DONE = (pb.ENTRY_STATE_READY, pb.ENTRY_STATE_REFUSED)


class Added(Protocol):
    """What AddDataset and AddModel answer."""

    @property
    def is_committed(self) -> bool:
        """The revision is there."""
        ...

    @property
    def uploads(self) -> Sequence[upload_pb2.UploadFile]:
        """What is missing."""
        ...


A = TypeVar("A", bound=Added)
E = TypeVar("E", pb.Dataset, pb.Model)


async def send(
    connection: Connection,
    paths: Mapping[str, Path],
    add: Callable[[], Awaitable[A]],
    *,
    entry_id: Callable[[A], str],
    through_gateway: bool,
    progress: transfer.Progress | None,
) -> A:
    """Send what is missing of an upload; ``add`` registers it and tells what that is.

    Addresses that expire on the way are asked for anew, as long as something arrives.

    Raises:
        PlatformError: as ``add`` and the transfer do.
    """
    account = transfer.Account(progress)
    before: int | None = None
    while True:
        added = await add()
        if added.is_committed:
            return added
        missing = _tell_arrived(paths, added.uploads, account)
        if not missing:
            return added
        try:
            if through_gateway:
                await _stream_parts(connection, entry_id(added), paths, added.uploads, account)
            else:
                await transfer.upload_parts(paths, added.uploads, account)
        except transfer.AddressesExpired:
            if before is not None and missing >= before:
                raise
            before = missing
        else:
            return added


async def settle(
    commit: Callable[[], Awaitable[E]],
    look: Callable[[], Awaitable[E]],
    checking: Callable[[E], None] | None,
) -> E:
    """Ask until an entry is ready or refused; ``checking`` is told how far it is meanwhile.

    A catalog that dies goes on with the check when it is back, so its absence is waited out.
    """
    loop = asyncio.get_running_loop()
    async with _watching(look, checking):
        give_up_at = loop.time() + PATIENCE_SECONDS
        while True:
            try:
                entry = await commit()
            except Unavailable:
                if loop.time() > give_up_at:
                    raise
                await asyncio.sleep(1)
                continue
            if entry.state in DONE:
                return entry
            give_up_at = loop.time() + PATIENCE_SECONDS


def _tell_arrived(
    paths: Mapping[str, Path], uploads: Sequence[upload_pb2.UploadFile], account: transfer.Account
) -> int:
    """Tell what needs not be sent, and return the bytes that must."""
    missing = {one.file.name: sum(part.size_bytes for part in one.missing_parts) for one in uploads}
    for name, path in paths.items():
        account.put_right(name, path.stat().st_size - missing.get(name, 0))
    return sum(missing.values())


async def _stream_parts(
    connection: Connection,
    entry_id: str,
    paths: Mapping[str, Path],
    uploads: Sequence[upload_pb2.UploadFile],
    account: transfer.Account,
) -> None:
    """Send missing parts through the gateway, for where the object store cannot be reached."""
    stub = catalog_pb2_grpc.CatalogServiceStub(connection.channel)

    async def stream(name: str, part: upload_pb2.PartLink) -> None:
        target = upload_pb2.UploadPartTarget(entry_id=entry_id, file_name=name, number=part.number)
        size_bytes = paths[name].stat().st_size
        if size_bytes < part.offset_bytes + part.size_bytes:
            raise transfer.FileChanged(f"{name} was changed while it was uploaded", file=name)
        for tries in range(1, transfer.TRIES + 1):
            told = 0

            def tell(count: int) -> None:
                nonlocal told
                told += count
                account.add(name, count)

            async def steps() -> AsyncIterator[upload_pb2.UploadPartRequest]:
                yield upload_pb2.UploadPartRequest(target=target)
                async for chunk in transfer.chunks_of(paths[name], part, tell):
                    yield upload_pb2.UploadPartRequest(chunk=chunk)

            try:
                await connection.call(stub.UploadPart, steps(), seconds=LONG_CALL_SECONDS)
            except Unavailable:
                account.add(name, -told)
                if tries == transfer.TRIES:
                    raise
                await asyncio.sleep(2.0 ** (tries - 1))
            else:
                return

    await transfer.each_part(uploads, stream)


@asynccontextmanager
async def _watching(
    look: Callable[[], Awaitable[E]], checking: Callable[[E], None] | None
) -> AsyncIterator[None]:
    """Tell how far an entry is while the block lasts."""
    if checking is None:
        yield
        return

    async def watch() -> None:
        while True:
            with suppress(PlatformError):
                checking(await look())
            await asyncio.sleep(LOOK_SECONDS)

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
