"""What tests of the catalog's entries share: waiting, looking below, uploading half."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1.catalog_pb2_grpc import CatalogServiceStub
from lehr.client import transfer
from lehr.faults import plan as plans
from lehr.objects import ObjectStore
from lehr.rpc.translate import raises_platform_errors
from tests.support.one_service import OneService

WITHIN_SECONDS = 60.0


async def until(is_so: Callable[[], Any], what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"not within {WITHIN_SECONDS} s: {what}"
        await asyncio.sleep(0.05)


async def strikes(service: OneService, name: str) -> None:
    """Wait until an armed fault has struck."""
    await until(lambda: plans.fired(service.faults, name), f"{name} strikes")


@asynccontextmanager
async def at_replica(service: OneService) -> AsyncIterator[Any]:
    """Call one replica as the gateway does."""
    async with service.called_by("gateway", tenant="default") as channel:
        stub = CatalogServiceStub(channel)

        async def ask(method: str, request: Any) -> Any:
            with raises_platform_errors():
                return await getattr(stub, method)(request, timeout=60)

        yield ask


async def added(call: Any, path: Path, name: str) -> str:
    """Upload the parts of a dataset without a commit; return its id."""
    announced = pb.AddDatasetRequest(name=name, files=[transfer.describe(path)])
    answer = await call("AddDataset", announced)
    await transfer.upload_parts({path.name: path}, answer.uploads, transfer.Account(None))
    return str(answer.dataset_id)


def losses(service: OneService) -> int:
    """Return how often a worker noticed that its claim was lost."""
    return service.log.read_text().count("claim_lost")


async def keys_below(store: ObjectStore, prefix: str) -> list[str]:
    """Return what lies in the object store below a prefix."""
    return [one.key for one in await store.list(prefix)]


async def settled(call: Any, dataset_id: str) -> pb.Dataset:
    """Ask until a dataset is ready or refused."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while True:
        answer = await call("CommitDataset", pb.CommitDatasetRequest(dataset_id=dataset_id))
        if answer.dataset.state in (pb.ENTRY_STATE_READY, pb.ENTRY_STATE_REFUSED):
            return answer.dataset
        assert time.monotonic() < deadline
