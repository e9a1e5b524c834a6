"""DS-03 of the requirements at its full size: the whole file decides, not its first block."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1.catalog_pb2_grpc import CatalogServiceStub
from lehr.client import AsyncClient
from lehr.samples.canonical import read_canonical
from lehr.training.canonical import spec_json
from lehr.training.proto import parse_spec
from tests.integration.catalog.test_datasets import chat, write
from tests.support.one_service import OneService
from tests.unit.samples.test_required_data_rows import ds_03_rows

COUNT = 60_004


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """The lines of the requirement."""
    return [json.dumps(row) for row in ds_03_rows()]


async def keys_of(catalog: OneService, dataset: pb.Dataset, folder: Path) -> list[bytes]:
    """Return the keys of a dataset's rows in the order in which they are trained on."""
    async with catalog.called_by("trainer_runner", tenant="default") as channel:
        request = pb.DownloadFilesRequest(rows_of=dataset.dataset_id)
        found = await CatalogServiceStub(channel).DownloadFiles(request)
    path = folder / dataset.name
    async with httpx.AsyncClient(trust_env=False) as store:
        path.write_bytes((await store.get(found.files[0].url)).content)
    return [located.row.key() for located in read_canonical(path)]


async def resolved(catalog: OneService, dataset: str) -> pb.ResolveTrainingResponse:
    """Ask what a job would train on, as the scheduler does."""
    spec = parse_spec({"name": "n", "model": "toy", "dataset": dataset})
    async with catalog.called_by("scheduler", tenant="default") as channel:
        request = pb.ResolveTrainingRequest(spec_json=spec_json(spec))
        return await CatalogServiceStub(channel).ResolveTraining(request, timeout=120)


def checksum(keys: Iterable[bytes]) -> str:
    """Return a checksum of rows in which their order does not count."""
    return hashlib.sha256(b"".join(sorted(keys))).hexdigest()


@pytest.mark.slow
async def test_both_orders_of_60_004_rows_are_accepted_as_the_same_set(
    client: AsyncClient, catalog: OneService, toy_model: Path, tmp_path: Path, lines: list[str]
) -> None:
    await client.models.add(toy_model, name="toy", license="MIT")

    forth = await client.datasets.upload(write(tmp_path, *lines), name="forth")
    back = await client.datasets.upload(write(tmp_path, *reversed(lines)), name="back")
    keys = await keys_of(catalog, forth.dataset, tmp_path)
    keys_back = await keys_of(catalog, back.dataset, tmp_path)
    used = [await resolved(catalog, name) for name in ("forth", "back")]

    for answer in (forth, back):
        found = answer.dataset
        assert answer.is_accepted
        assert (found.row_count, found.distinct_count, found.row_kind) == (COUNT, COUNT, "messages")
        assert not found.problems
    assert forth.dataset.revision != back.dataset.revision
    assert len(set(keys)) == COUNT
    assert keys_back == keys[::-1]
    assert checksum(keys) == checksum(keys_back)
    assert {one.train_count + one.validation_count for one in used} == {COUNT}


@pytest.mark.parametrize(
    "line",
    [COUNT + 1, *(pytest.param(line, marks=pytest.mark.slow) for line in (30_000, 1))],
)
async def test_a_used_column_of_a_bad_type_is_named_wherever_it_lies(
    client: AsyncClient, tmp_path: Path, lines: list[str], line: int
) -> None:
    bad: dict[str, Any] = {"messages": {"role": "user", "content": "q"}, "meta": None}
    path = write(tmp_path, *lines[: line - 1], bad, *lines[line - 1 :])

    answer = await client.datasets.upload(path, name="bad-type")

    [problem] = answer.dataset.problems
    assert (answer.is_accepted, list(problem.lines)) == (False, [line])
    assert problem.description == "messages is an object; write a list of messages"


async def test_a_late_row_of_another_kind_is_named_too(
    client: AsyncClient, tmp_path: Path, lines: list[str]
) -> None:
    path = write(tmp_path, *lines, {"text": "no chat"}, chat("q", "a"))

    answer = await client.datasets.upload(path, name="late-kind")

    assert not answer.is_accepted
    assert [list(one.lines) for one in answer.dataset.problems] == [[COUNT + 1]]
