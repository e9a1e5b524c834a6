"""What is deleted, refused or abandoned leaves nothing behind."""

import asyncio
import time
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.client import AsyncClient, transfer
from lehr.errors import NotFound, PlatformError
from lehr.faults import plan as plans
from lehr.objects import ObjectStore
from tests.integration.catalog.story import (
    WITHIN_SECONDS,
    added,
    keys_below,
    losses,
    strikes,
    until,
)
from tests.integration.catalog.test_datasets import chat, write
from tests.support.one_service import OneService, a_service
from tests.support.stack import DatabaseForTests

pytestmark = pytest.mark.usefixtures("nothing_armed")


async def test_a_refused_dataset_keeps_its_report_for_a_day_and_none_of_its_bytes(
    catalog: OneService,
    call: Any,
    client: AsyncClient,
    store: ObjectStore,
    database: DatabaseForTests,
    tmp_path: Path,
) -> None:
    refused = (await client.datasets.upload(write(tmp_path, "no row"), name="refused")).dataset
    left = await added(call, write(tmp_path, chat("left", "a")), "left")
    ready = (await client.datasets.upload(write(tmp_path, chat("r", "a")), name="r")).dataset
    kept = await keys_below(store, f"datasets/default/{refused.dataset_id}/")
    shown = await client.datasets.inspect(refused.dataset_id)

    await in_a_day(catalog, database)
    try:
        for entry_id in (refused.dataset_id, left):
            await gone(client, entry_id)
    finally:
        await shift(database, "0 seconds")

    assert shown.dataset.problems == refused.problems
    assert kept == []
    assert await keys_below(store, f"uploads/default/{left}/") == []
    assert (await client.datasets.inspect(ready.dataset_id)).dataset == ready


async def in_a_day(catalog: OneService, database: DatabaseForTests) -> None:
    """Let a day pass for the database; a catalog that starts sweeps at once."""
    await shift(database, "25 hours")
    catalog.control.stop()
    catalog.control.start()


async def shift(database: DatabaseForTests, amount: str) -> None:
    """Set the database's clock forward."""
    connection = await asyncpg.connect(database.admin_url)
    await connection.execute("UPDATE clock.shift SET amount = $1::text::interval", amount)
    await connection.close()


async def gone(client: AsyncClient, dataset_id: str) -> None:
    """Wait until a dataset is forgotten."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while True:
        try:
            await client.datasets.inspect(dataset_id)
        except NotFound:
            return
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def test_deleting_removes_every_byte_and_may_be_asked_again(
    client: AsyncClient, store: ObjectStore, tmp_path: Path, toy_model: Path
) -> None:
    dataset = (await client.datasets.upload(write(tmp_path, chat("d", "a")), name="doomed")).dataset
    model = await client.models.add(toy_model, name="doomed", license="MIT")
    tokens = f"tokens/default/{dataset.dataset_id}/"
    await store.put_bytes(f"{tokens}0.safetensors", b"x")
    places = [f"datasets/default/{dataset.dataset_id}/", f"models/default/{model.model_id}/"]
    before = [len(await keys_below(store, place)) for place in places]

    await client.datasets.delete("doomed")
    await client.models.delete("doomed")
    await client.datasets.delete(dataset.dataset_id)
    await client.models.delete(model.model_id)

    assert min(before) > 1
    assert [await keys_below(store, place) for place in (*places, tokens)] == [[], [], []]
    with pytest.raises(NotFound):
        await client.datasets.inspect("doomed")
    with pytest.raises(NotFound):
        await client.models.get("doomed")
    with pytest.raises(NotFound):
        await client.datasets.delete("doomed")


async def test_a_dataset_that_is_deleted_while_it_is_validated_leaves_nothing(
    catalog: OneService, call: Any, client: AsyncClient, store: ObjectStore, tmp_path: Path
) -> None:
    dataset_id = await added(call, write(tmp_path, chat("away", "a")), "away")
    point, lost = "catalog.validate.assembled", losses(catalog)
    plans.arm(catalog.faults, point, action="hang")
    begun = asyncio.create_task(
        call("CommitDataset", pb.CommitDatasetRequest(dataset_id=dataset_id))
    )
    await strikes(catalog, point)

    await client.datasets.delete(dataset_id)
    plans.disarm(catalog.faults)

    with pytest.raises(NotFound):
        await begun
    await until(lambda: losses(catalog) > lost, "the worker sees that")
    deadline = time.monotonic() + WITHIN_SECONDS
    while await keys_below(store, f"datasets/default/{dataset_id}/"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def test_what_a_crash_leaves_of_a_removal_goes_later_and_until_then_is_not_added_again(
    catalog: OneService,
    call: Any,
    client: AsyncClient,
    store: ObjectStore,
    database: DatabaseForTests,
    tmp_path: Path,
) -> None:
    path, point = write(tmp_path, chat("crashed", "a")), "catalog.remove.after_row"
    dataset = (await client.datasets.upload(path, name="crashed")).dataset
    prefix = f"datasets/default/{dataset.dataset_id}/"
    plans.arm(catalog.faults, point, action="kill")
    deleting = asyncio.create_task(client.datasets.delete(dataset.dataset_id))
    await strikes(catalog, point)
    plans.disarm(catalog.faults)
    catalog.control.kill()
    catalog.control.start()
    await asyncio.gather(deleting, return_exceptions=True)

    with pytest.raises(NotFound):
        await client.datasets.inspect(dataset.dataset_id)
    left = await keys_below(store, prefix)
    with pytest.raises(PlatformError) as refused:
        await call("AddDataset", pb.AddDatasetRequest(name="crashed", files=dataset.files))
    await shift(database, "10 minutes")
    try:
        again = (await client.datasets.upload(path, name="crashed")).dataset
    finally:
        await shift(database, "0 seconds")

    assert len(left) > 1
    assert refused.value.reason == "ENTRY_BEING_REMOVED"
    assert (again.dataset_id, again.state) == (dataset.dataset_id, pb.ENTRY_STATE_READY)
    await client.datasets.download("crashed", tmp_path / "got")


async def test_a_sweep_goes_on_with_a_removal_that_another_process_began(
    catalog: OneService,
    client: AsyncClient,
    store: ObjectStore,
    database: DatabaseForTests,
    toy_model: Path,
) -> None:
    model = await client.models.add(toy_model, name="unswept", license="MIT")
    prefix, point = f"models/default/{model.model_id}/", "catalog.remove.after_row"
    plans.arm(catalog.faults, point, action="error")
    # Asked again by itself, it finds nothing to delete any more.
    await client.models.delete(model.model_id)
    plans.disarm(catalog.faults)
    left = await keys_below(store, prefix)

    await in_a_day(catalog, database)
    try:
        deadline = time.monotonic() + WITHIN_SECONDS
        while await keys_below(store, prefix):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
    finally:
        await shift(database, "0 seconds")

    assert len(left) > 1
    connection = await asyncpg.connect(database.admin_url)
    assert await connection.fetchval("SELECT count(*) FROM catalog.removals") == 0
    await connection.close()


async def test_no_transaction_is_open_while_the_objects_of_an_entry_are_deleted(
    catalog: OneService, client: AsyncClient, database: DatabaseForTests, tmp_path: Path
) -> None:
    dataset = (await client.datasets.upload(write(tmp_path, chat("slow", "a")), name="s")).dataset
    point = "catalog.remove.after_row"
    plans.arm(catalog.faults, point, action="hang")
    deleting = asyncio.create_task(client.datasets.delete(dataset.dataset_id))
    await strikes(catalog, point)

    # Workers that look for something to do hold such a lock for a moment too.
    held = (
        "SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = relation"
        " WHERE relname = 'datasets' AND mode = 'RowExclusiveLock'"
    )
    connection = await asyncpg.connect(database.admin_url)
    deadline = time.monotonic() + 15
    while is_held := await connection.fetchval(held):
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.1)
    await connection.close()
    was_deleting = not deleting.done()
    plans.disarm(catalog.faults)
    await deleting

    assert was_deleting
    assert not is_held


async def test_parts_that_come_after_all_was_decided_are_swept(
    catalog_variables: dict[str, str],
    call: Any,
    client: AsyncClient,
    store: ObjectStore,
    database: DatabaseForTests,
    tmp_path: Path,
) -> None:
    path = write(tmp_path, chat("late", "a"))
    announced = pb.AddDatasetRequest(name="late", files=[transfer.describe(path)])
    late = await call("AddDataset", announced)
    await client.datasets.upload(path, name="late")
    await transfer.upload_parts({path.name: path}, late.uploads, transfer.Account(None))
    prefix = f"uploads/default/{late.dataset_id}/"
    before = await keys_below(store, prefix)
    await asyncio.sleep(2)

    with a_service("catalog", {**catalog_variables, "CATALOG_UPLOAD_LIFETIME": "PT1S"}):
        deadline = time.monotonic() + WITHIN_SECONDS
        while await keys_below(store, prefix):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        connection = await asyncpg.connect(database.admin_url)
        rows = "SELECT count(*) FROM catalog.uploads WHERE entry_id = $1"
        while await connection.fetchval(rows, late.dataset_id):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        await connection.close()

    assert len(before) == 1
    await client.datasets.download("late", tmp_path / "got")
