"""Who waits for an answer that hangs on the object store is told so."""

from pathlib import Path

import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1.catalog_pb2_grpc import CatalogServiceStub
from lehr.client import AsyncClient
from lehr.errors import PlatformError
from lehr.rpc.translate import raises_platform_errors
from lehr.training.canonical import spec_json
from tests.integration.catalog.test_datasets import chat, write
from tests.support.one_service import OneService
from tests.support.scheduler import a_spec
from tests.support.servers import ObjectsForTests


@pytest.mark.parametrize("seconds", [8, 25])
async def test_a_plan_that_hangs_on_the_object_store_names_it(
    catalog: OneService,
    client: AsyncClient,
    s3: ObjectsForTests,
    tmp_path: Path,
    toy_model: Path,
    seconds: float,
) -> None:
    name = f"silent-{seconds}"
    path = write(tmp_path, chat(name, "a"), chat(f"{name} again", "b"))
    await client.datasets.upload(path, name=name)
    await client.models.add(toy_model, name="silent", license="MIT")
    request = pb.ResolveTrainingRequest(spec_json=spec_json(a_spec(model="silent", dataset=name)))
    async with catalog.called_by("scheduler", tenant="default") as channel:
        stub = CatalogServiceStub(channel)
        s3.control.pause()
        try:
            with pytest.raises(PlatformError) as told, raises_platform_errors():
                await stub.ResolveTraining(request, timeout=seconds)
        finally:
            s3.control.resume()
        assert told.value.reason == "OBJECT_STORE_UNAVAILABLE"
        assert "the object store does not answer" in str(told.value)
        with raises_platform_errors():
            found = await stub.ResolveTraining(request, timeout=60)
    assert found.train_count == 1
