"""The life of an entry: whoever dies meanwhile, it is validated once and nothing is lost."""

import asyncio
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.client import AsyncClient
from lehr.faults import plan as plans
from lehr.objects import ObjectStore
from lehr.postgres import Database
from services.catalog.domain.entries import Dataset, EntryState, Progress, Reference
from services.catalog.domain.errors import ClaimLost
from services.catalog.storage import claims, entries
from tests.integration.catalog.story import (
    added,
    at_replica,
    keys_below,
    losses,
    settled,
    strikes,
    until,
)
from tests.integration.catalog.test_datasets import chat, write
from tests.support.one_service import OneService, a_service
from tests.support.stack import DatabaseForTests

pytestmark = pytest.mark.usefixtures("nothing_armed")


@pytest.mark.parametrize(
    "point",
    [
        "catalog.validate.claimed",
        "catalog.validate.assembled",
        "catalog.validate.before_commit",
        "catalog.commit_dataset.after_row",
    ],
)
async def test_a_validation_whose_catalog_is_killed_is_done_again(
    catalog: OneService, client: AsyncClient, store: ObjectStore, tmp_path: Path, point: str
) -> None:
    path = write(tmp_path, *(chat(f"{point} {number}", "a" * 3000) for number in range(600)))
    plans.arm(catalog.faults, point, action="kill")

    uploading = asyncio.create_task(client.datasets.upload(path, name="killed"))
    await strikes(catalog, point)
    killed = catalog.control.pid
    catalog.control.kill()
    catalog.control.start()
    answer = await uploading

    assert answer.is_accepted
    assert answer.dataset.row_count == 600
    left = Path(tempfile.gettempdir()).glob(f"lehr-catalog-{killed}-*")
    assert not list(left)
    await client.datasets.download("killed", tmp_path / "got")
    assert (tmp_path / "got" / path.name).read_bytes() == path.read_bytes()


async def test_a_model_whose_catalog_is_killed_is_validated_again(
    catalog: OneService, client: AsyncClient, toy_model: Path
) -> None:
    point = "catalog.validate.before_commit"
    plans.arm(catalog.faults, point, action="kill")

    adding = asyncio.create_task(client.models.add(toy_model, name="killed", license="MIT"))
    await strikes(catalog, point)
    catalog.control.kill()
    catalog.control.start()

    assert (await adding).state == pb.ENTRY_STATE_READY


async def test_what_kills_three_workers_is_refused_with_words(
    catalog: OneService, call: Any, tmp_path: Path
) -> None:
    dataset_id = await added(call, write(tmp_path, chat("deadly", "a")), "deadly")
    point = "catalog.validate.assembled"
    plans.arm(catalog.faults, point, action="kill", times=None)
    begun = asyncio.create_task(
        call("CommitDataset", pb.CommitDatasetRequest(dataset_id=dataset_id))
    )

    for death in (1, 2, 3):
        await until(lambda death=death: plans.fired(catalog.faults, point) == death, "a death")
        catalog.control.kill()
        catalog.control.start()
    await asyncio.gather(begun, return_exceptions=True)
    found = await settled(call, dataset_id)

    assert found.state == pb.ENTRY_STATE_REFUSED
    assert "could not be examined in 3 attempts" in found.problems[0].description
    assert plans.fired(catalog.faults, point) == 3


async def test_two_replicas_never_validate_the_same_at_once(
    catalog: OneService, catalog_variables: dict[str, str], client: AsyncClient, tmp_path: Path
) -> None:
    point = "catalog.validate.claimed"
    with a_service("catalog", catalog_variables) as other:
        for replica in (catalog, other):
            # Longer in all than the other replica takes to look for work.
            plans.arm(replica.faults, point, action="delay", seconds=1.0, times=None)
        uploads = []
        for number in range(12):
            (tmp_path / str(number)).mkdir()
            path = write(tmp_path / str(number), chat(f"shared {number}", "a"))
            uploads.append(client.datasets.upload(path, name=f"shared-{number}"))
        answers = await asyncio.gather(*uploads)
        counts = [plans.fired(replica.faults, point) for replica in (catalog, other)]

    assert all(answer.is_accepted for answer in answers)
    assert sum(counts) == 12
    assert min(counts) > 0


async def test_a_worker_that_slept_through_its_claim_changes_nothing(
    catalog: OneService,
    catalog_variables: dict[str, str],
    call: Any,
    store: ObjectStore,
    tmp_path: Path,
) -> None:
    dataset_id = await added(call, write(tmp_path, chat("asleep", "a")), "asleep")
    point, lost = "catalog.validate.before_commit", losses(catalog)
    plans.arm(catalog.faults, point, action="hang")
    begun = asyncio.create_task(
        call("CommitDataset", pb.CommitDatasetRequest(dataset_id=dataset_id))
    )
    await strikes(catalog, point)
    catalog.control.pause()
    try:
        with a_service("catalog", catalog_variables) as other:
            async with at_replica(other) as ask:
                before = await settled(ask, dataset_id)
                kept = await keys_below(store, f"datasets/default/{dataset_id}/")
    finally:
        catalog.control.resume()
        plans.disarm(catalog.faults)
    await asyncio.gather(begun, return_exceptions=True)
    await until(lambda: losses(catalog) > lost, "the sleeper sees that")

    assert before.state == pb.ENTRY_STATE_READY
    after = (await call("InspectDataset", pb.InspectDatasetRequest(dataset=dataset_id))).dataset
    assert after == before
    assert await keys_below(store, f"datasets/default/{dataset_id}/") == kept


async def test_only_the_holder_of_a_claim_changes_an_entry(
    catalog: OneService, call: Any, database: DatabaseForTests, tmp_path: Path
) -> None:
    dataset_id = await added(call, write(tmp_path, chat("held", "a")), "held")
    point = "catalog.validate.assembled"
    plans.arm(catalog.faults, point, action="hang")
    begun = asyncio.create_task(
        call("CommitDataset", pb.CommitDatasetRequest(dataset_id=dataset_id))
    )
    await strikes(catalog, point)
    db = await Database.connect(database.url("catalog"))
    claim = claims.Claim(
        kind=Dataset,
        entry_id=dataset_id,
        tenant="default",
        project="default",
        worker="another",
        attempts=1,
    )

    async with db.connection() as conn:
        reference = Reference(entry_id=dataset_id)
        held = await entries.find(conn, Dataset, "default", "default", reference)
        assert held is not None
        found = replace(held, row_count=7, rows_file=held.files[0])
        for state in (EntryState.READY, EntryState.REFUSED):
            with pytest.raises(ClaimLost):
                await entries.end_work(conn, found, "another", state, refusal="no")
        with pytest.raises(ClaimLost):
            await entries.imported(conn, found, "another")
        is_kept = await claims.renew(conn, claim, timedelta(hours=1), Progress())
        await claims.release(conn, claim, timedelta(hours=1), counts=True)
        await claims.put_off(conn, claim, timedelta(hours=1), "no", counts=True)
        kept = await entries.find(conn, Dataset, "default", "default", reference)
    await db.close()
    plans.disarm(catalog.faults)
    await begun

    assert not is_kept
    assert kept is not None
    assert replace(kept, progress=held.progress) == held
    last = await settled(call, dataset_id)
    assert (last.state, last.row_count, last.problems) == (pb.ENTRY_STATE_READY, 1, [])


async def test_a_commit_answers_how_far_it_is_and_may_be_asked_again(
    catalog: OneService, call: Any, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("slow", "a"))
    dataset_id = await added(call, path, "slow")
    plans.arm(catalog.faults, "catalog.validate.assembled", action="hang")
    request = pb.CommitDatasetRequest(dataset_id=dataset_id)

    first, second = await asyncio.gather(*(call("CommitDataset", request) for _ in range(2)))
    listed = await call("ListDatasets", pb.ListDatasetsRequest(name_contains="slow"))
    plans.disarm(catalog.faults)
    last = await settled(call, dataset_id)

    for answer in (first, second):
        assert (answer.is_accepted, answer.dataset.state) == (False, pb.ENTRY_STATE_VALIDATING)
    assert first.dataset.progress.total_bytes == path.stat().st_size
    assert not listed.datasets
    assert last.state == pb.ENTRY_STATE_READY


async def test_a_catalog_that_is_stopped_gives_its_work_back_at_once(
    catalog: OneService, call: Any, database: DatabaseForTests, tmp_path: Path
) -> None:
    dataset_id = await added(call, write(tmp_path, chat("given back", "a")), "given-back")
    point = "catalog.validate.assembled"
    plans.arm(catalog.faults, point, action="hang")
    begun = asyncio.create_task(
        call("CommitDataset", pb.CommitDatasetRequest(dataset_id=dataset_id))
    )
    await strikes(catalog, point)

    catalog.control.stop()
    connection = await asyncpg.connect(database.admin_url)
    row = await connection.fetchrow(
        "SELECT state, claimed_by, attempts FROM catalog.datasets WHERE dataset_id = $1",
        dataset_id,
    )
    await connection.close()
    plans.disarm(catalog.faults)
    catalog.control.start()
    await asyncio.gather(begun, return_exceptions=True)

    assert row is not None
    assert tuple(row) == ("VALIDATING", "", 0)
    assert (await settled(call, dataset_id)).state == pb.ENTRY_STATE_READY


async def test_a_store_that_is_away_puts_a_validation_off_and_refuses_nothing(
    catalog: OneService, call: Any, s3: Any, tmp_path: Path
) -> None:
    dataset_id = await added(call, write(tmp_path, chat("patient", "a")), "patient")
    plans.arm(catalog.faults, "catalog.validate.claimed", action="error", times=4)

    found = await settled(call, dataset_id)

    assert found.state == pb.ENTRY_STATE_READY
    assert plans.fired(catalog.faults, "catalog.validate.claimed") == 4
