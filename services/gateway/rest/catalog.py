"""The catalog, called for one request."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, TypeVar

import grpc.aio
from fastapi import Depends, Request

from lehr.api.catalog.v1.catalog_pb2_grpc import CatalogServiceStub
from lehr.api.catalog.v1.upload_pb2 import UploadPartRequest, UploadPartTarget
from lehr.rpc.client import DEADLINE_SECONDS, errors_from_rpc
from services.gateway.rest.auth import metadata_of
from services.gateway.upstream import ServiceAway, Upstream, is_silence

SERVICE = "catalog"

PART_SECONDS = 600.0
"""What one part of a file may take: 64 MiB at 1 Mbit/s."""

CUT_OFF = "Internal error from Core"
"""What grpc 1.85 says where a write met the end of a call, such as that of the catalog."""

#: What a call that is over answers to a write.
_OVER = (asyncio.InvalidStateError, grpc.aio.InternalError, grpc.aio.AioRpcError)

T = TypeVar("T")


class Catalog:
    """Calls the catalog in the name of a request's key; failures are raised as PlatformError."""

    def __init__(self, upstream: Upstream, request: Request) -> None:
        self.stub = CatalogServiceStub(upstream.channel(SERVICE))
        self._metadata = metadata_of(request.scope)

    async def ask(
        self,
        method: Callable[..., Awaitable[T]],
        request: Any,
        *,
        seconds: float = DEADLINE_SECONDS,
    ) -> T:
        """Make a call; ``method`` is one of ``stub``."""
        with _answers():
            return await method(request, timeout=seconds, metadata=self._metadata)

    async def send_part(self, target: UploadPartTarget, pieces: AsyncIterator[bytes]) -> int:
        """Stream one part of a file and return its bytes.

        Raises:
            Exception: what reading ``pieces`` raised.
        """
        # Without an iterator, which its type asks for: what ends the body must be raised here.
        method: Any = self.stub.UploadPart
        call = method(timeout=PART_SECONDS, metadata=self._metadata)
        try:
            with _answers():
                # A call that is over takes nothing more; how it ended is asked below.
                with suppress(
                    asyncio.InvalidStateError, grpc.aio.InternalError, grpc.aio.AioRpcError
                ):
                    await call.write(UploadPartRequest(target=target))
                    async for piece in pieces:
                        await call.write(UploadPartRequest(chunk=piece))
                    await call.done_writing()
                return int((await call).size_bytes)
        finally:
            call.cancel()


@contextmanager
def _answers() -> Iterator[None]:
    """Raise what the catalog refused, or that it is away."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if is_silence(error) or error.details() == CUT_OFF:
            raise ServiceAway(SERVICE) from None
        raise errors_from_rpc(error) from None


async def _catalog(request: Request) -> Catalog:
    return Catalog(request.app.state.upstream, request)


TheCatalog = Annotated[Catalog, Depends(_catalog)]
