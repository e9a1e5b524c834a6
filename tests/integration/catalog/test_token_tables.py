"""Tables of tokens: made once, shared, deleted with their dataset, and equal to what is trained."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1 import catalog_pb2_grpc
from lehr.client import AsyncClient
from lehr.errors import InvalidArgument
from lehr.objects import ObjectStore
from lehr.rpc.client import raises_platform_errors
from lehr.training.spec import JobSpec
from tests.integration.catalog.test_datasets import chat, write
from tests.support.one_service import OneService
from tests.support.toy_model import write_toy_model

MIXED = [chat("q" * 300, "Paris."), chat("q", "a"), chat("x", "y" * 100), chat("z", "w")]


@pytest.fixture
async def model(client: AsyncClient, toy_model: Path) -> str:
    """The toy model in the catalog; context 1024."""
    return (await client.models.add(toy_model, name="toy", license="Apache-2.0")).name


def counted(catalog: OneService, dataset_id: str) -> int:
    """Return how often the tokens of a dataset were counted."""
    lines = catalog.log.read_text().splitlines()
    return sum("tokens_counted" in line and dataset_id in line for line in lines)


async def tables(store: ObjectStore, dataset_id: str) -> list[str]:
    stored = await store.list(f"tokens/default/{dataset_id}/")
    return [one.key for one in stored if one.key.endswith(".safetensors")]


async def resolve(catalog: OneService, **spec: Any) -> pb.ResolveTrainingResponse:
    told = JobSpec.model_validate({"name": "j", "model": "toy", **spec}).model_dump_json()
    async with catalog.called_by("scheduler", tenant="default") as channel:
        stub = catalog_pb2_grpc.CatalogServiceStub(channel)
        with raises_platform_errors():
            return await stub.ResolveTraining(pb.ResolveTrainingRequest(spec_json=told))


async def ask(catalog: OneService, method: str, request: Any) -> Any:
    async with catalog.called_by("gateway", tenant="default") as channel:
        stub = catalog_pb2_grpc.CatalogServiceStub(channel)
        with raises_platform_errors():
            return await getattr(stub, method)(request)


@pytest.mark.parametrize("overlong", ["truncate", "drop"])
async def test_every_place_tells_the_same_numbers(
    client: AsyncClient, catalog: OneService, model: str, tmp_path: Path, overlong: str
) -> None:
    path = write(tmp_path, *MIXED)
    await client.datasets.upload(path, name="numbers")
    data = {"max_length": 64, "overlong": overlong, "validation_split": 0}

    told = (await client.datasets.recommend("numbers", model=model, max_length=64)).lengths
    plan = await resolve(catalog, dataset="numbers", data=data)

    assert (told.row_count, told.longest_tokens, told.overlong_count) == (4, 311, 2)
    used = {"truncate": told.used_count_truncate, "drop": told.used_count_drop}
    untrainable = {
        "truncate": told.untrainable_count_truncate,
        "drop": told.untrainable_count_drop,
    }
    assert plan.train_count == used[overlong] == {"truncate": 4, "drop": 2}[overlong]
    assert plan.untrainable_count == untrainable[overlong] == 0
    assert plan.truncated_count + plan.dropped_count == told.overlong_count
    assert plan.longest_tokens == told.longest_tokens


async def test_the_numbers_of_an_inspection_are_those_of_the_recommendation(
    client: AsyncClient, model: str, tmp_path: Path
) -> None:
    await client.datasets.upload(write(tmp_path, *MIXED), name="inspected")

    inspected = await client.datasets.inspect("inspected", model=model)
    recommended = await client.datasets.recommend("inspected", model=model)

    assert inspected.lengths == recommended.lengths
    assert inspected.lengths.max_length == inspected.lengths.recommended_max_length


async def test_a_table_is_made_once_for_all_who_ask_at_once_and_later(
    client: AsyncClient, catalog: OneService, model: str, store: ObjectStore, tmp_path: Path
) -> None:
    added = await client.datasets.upload(write(tmp_path, *MIXED), name="once")
    dataset_id = added.dataset.dataset_id

    answers = await asyncio.gather(
        *(client.datasets.recommend("once", model=model) for _ in range(8))
    )
    later = await client.datasets.recommend("once", model=model, max_length=20)

    assert len({answer.SerializeToString() for answer in answers}) == 1
    assert later.lengths.longest_tokens == answers[0].lengths.longest_tokens
    assert counted(catalog, dataset_id) == 1
    assert len(await tables(store, dataset_id)) == 1


async def test_another_model_with_the_same_tokenizer_finds_the_table(
    client: AsyncClient, catalog: OneService, model: str, tmp_path: Path
) -> None:
    added = await client.datasets.upload(write(tmp_path, *MIXED), name="shared")
    other = write_toy_model(tmp_path / "other", context=2048)
    await client.models.add(other, name="toy-long", license="Apache-2.0")

    await client.datasets.recommend("shared", model=model)
    await client.datasets.recommend("shared", model="toy-long")

    assert counted(catalog, added.dataset.dataset_id) == 1


async def test_a_table_that_is_missing_is_made_again(
    client: AsyncClient, catalog: OneService, model: str, store: ObjectStore, tmp_path: Path
) -> None:
    added = await client.datasets.upload(write(tmp_path, *MIXED), name="missing")
    dataset_id = added.dataset.dataset_id
    first = await client.datasets.recommend("missing", model=model)

    await store.delete(await tables(store, dataset_id))
    again = await client.datasets.recommend("missing", model=model)

    assert again == first
    assert counted(catalog, dataset_id) == 2
    assert len(await tables(store, dataset_id)) == 1


async def test_a_table_goes_with_its_dataset(
    client: AsyncClient, catalog: OneService, model: str, store: ObjectStore, tmp_path: Path
) -> None:
    added = await client.datasets.upload(write(tmp_path, chat("gone", "soon")), name="gone")
    dataset_id = added.dataset.dataset_id
    await client.datasets.recommend("gone", model=model)
    assert await tables(store, dataset_id)

    await ask(catalog, "DeleteDataset", pb.DeleteDatasetRequest(dataset_id=dataset_id))

    assert not await store.list(f"tokens/default/{dataset_id}/")


async def test_a_template_that_prints_the_date_leaves_no_table(
    client: AsyncClient, catalog: OneService, store: ObjectStore, tmp_path: Path
) -> None:
    dated = write_toy_model(
        tmp_path / "dated",
        template="{{ strftime_now('%Y') }}{% for message in messages %}"
        "{{ '<|' + message['role'] + '|>' + message['content'] + '</s>' }}{% endfor %}",
    )
    await client.models.add(dated, name="dated", license="Apache-2.0")
    added = await client.datasets.upload(write(tmp_path, *MIXED), name="dates")

    for _ in range(2):
        await client.datasets.recommend("dates", model="dated")

    assert counted(catalog, added.dataset.dataset_id) == 2
    assert not await tables(store, added.dataset.dataset_id)


async def test_rows_of_many_megabytes_are_counted_by_processes_of_their_own(
    client: AsyncClient, model: str, tmp_path: Path
) -> None:
    rows = [chat(f"{at:06}" + "q" * 400, "a" * (at % 7)) for at in range(6000)]
    await client.datasets.upload(write(tmp_path, *rows), name="large")

    told = (await client.datasets.recommend("large", model=model, max_length=412)).lengths

    lengths = [406 + 5 + at % 7 for at in range(6000)]
    assert told.row_count == 6000
    assert told.longest_tokens == max(lengths)
    assert told.overlong_count == sum(length > 412 for length in lengths)


async def test_a_bundled_template_is_used_in_every_place(
    client: AsyncClient, catalog: OneService, model: str, tmp_path: Path
) -> None:
    await client.datasets.upload(write(tmp_path, *MIXED), name="bundled")
    names = {"dataset": "bundled", "model": model, "chat_template": "zephyr"}

    told = await ask(catalog, "Recommend", pb.RecommendRequest(**names))
    inspected = await ask(catalog, "InspectDataset", pb.InspectDatasetRequest(**names))
    shown = await ask(catalog, "PreviewSamples", pb.PreviewSamplesRequest(**names, lines=[2]))
    data = {"chat_template": "zephyr", "validation_split": 0}
    plan = await resolve(catalog, dataset="bundled", data=data)

    assert shown.samples[0].text.startswith("<|user|>\nq")
    lengths = {
        told.lengths.longest_tokens,
        inspected.lengths.longest_tokens,
        plan.longest_tokens,
    }
    assert len(lengths) == 1
    assert lengths.pop() != 311


async def test_a_template_that_nobody_knows_is_refused_with_its_field(
    client: AsyncClient, catalog: OneService, model: str, tmp_path: Path
) -> None:
    await client.datasets.upload(write(tmp_path, *MIXED), name="no-template")

    with pytest.raises(InvalidArgument, match="use one of") as refused:
        await resolve(catalog, dataset="no-template", data={"chat_template": "nobody"})

    assert refused.value.fields[0].field == "data.chat_template"


async def test_rows_that_are_on_both_sides_are_told(
    client: AsyncClient, catalog: OneService, model: str, tmp_path: Path
) -> None:
    await client.datasets.upload(write(tmp_path, *MIXED), name="train")
    held_out = [MIXED[1], chat("z", "another"), chat("new", "row")]
    await client.datasets.upload(write(tmp_path, *held_out), name="held-out")

    plan = await resolve(catalog, dataset="train", data={"validation_dataset": "held-out"})

    assert (plan.train_count, plan.validation_count, plan.leaked_count) == (4, 3, 2)
    assert "1 are trained word for word, 1 have a prompt that is trained" in plan.warnings[0]


async def test_both_sides_of_a_preference_are_shown_cut_alike(
    client: AsyncClient, model: str, tmp_path: Path
) -> None:
    row = {"prompt": "a long question: ", "chosen": "yes", "rejected": "no, never"}
    await client.datasets.upload(write(tmp_path, row), name="pairs")

    whole = await client.datasets.preview("pairs", model=model)
    cut = await client.datasets.preview("pairs", model=model, max_length=14)
    dropped = await client.datasets.preview("pairs", model=model, max_length=10)

    assert [(one.side, one.token_count, one.outcome) for one in whole] == [
        ("chosen", 21, "kept"),
        ("rejected", 27, "kept"),
    ]
    assert ["".join(one.tokens) for one in cut] == ["on: yes</s>", "on: no, never</s>"]
    assert {one.outcome for one in cut} == {"truncated"}
    assert {one.outcome for one in dropped} == {"dropped"}


async def test_services_get_rows_and_tables_and_nobody_else(
    client: AsyncClient, catalog: OneService, model: str, tmp_path: Path
) -> None:
    added = await client.datasets.upload(write(tmp_path, *MIXED), name="rows-of")
    await client.datasets.recommend("rows-of", model=model)
    request = pb.DownloadFilesRequest(rows_of=added.dataset.dataset_id)

    async with catalog.called_by("trainer_runner", tenant="default") as channel:
        found = await catalog_pb2_grpc.CatalogServiceStub(channel).DownloadFiles(request)

    names = [file.name for file in found.files]
    assert names[0] == "rows.jsonl.zst"
    assert [Path(name).suffix for name in names[1:]] == [".safetensors"]
    assert all(file.url and len(file.sha256) == 64 for file in found.files)


async def test_a_row_that_the_template_refuses_is_named_by_its_line(
    client: AsyncClient, catalog: OneService, tmp_path: Path
) -> None:
    strict = (
        "{% for message in messages %}{% if message.content == 'bad' %}"
        "{{ raise_exception('no such words') }}{% endif %}{{ message.role + message.content }}"
        "{% endfor %}{{ 'assistant' if add_generation_prompt }}"
    )
    folder = write_toy_model(tmp_path / "strict", template=strict)
    await client.models.add(folder, name="strict", license="Apache-2.0")
    path = write(tmp_path, chat("q", "a"), json.dumps(chat("q", "bad")))
    await client.datasets.upload(path, name="refusing")

    with pytest.raises(InvalidArgument, match=r"line 2: .*no such words"):
        await client.datasets.recommend("refusing", model="strict")
