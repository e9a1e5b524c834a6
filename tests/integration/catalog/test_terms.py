"""Licences and sources are recorded; what is not free to use needs somebody who answers for it."""

from pathlib import Path

import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.client import AsyncClient
from lehr.errors import InvalidArgument
from tests.integration.catalog.test_datasets import chat, write


@pytest.mark.parametrize("license_id", ["cc-by-nc-4.0", "other", "unknown", "llama3.1", "x y z"])
async def test_a_licence_that_is_not_free_must_be_answered_for_before_anything_is_sent(
    client: AsyncClient, toy_model: Path, tmp_path: Path, license_id: str
) -> None:
    path = write(tmp_path, chat(license_id, "a"))
    told: list[int] = []

    with pytest.raises(InvalidArgument, match="acknowledge") as refusal:
        await client.datasets.upload(
            path, name="terms", license=license_id, progress=lambda _, count: told.append(count)
        )
    with pytest.raises(InvalidArgument, match="acknowledge"):
        await client.models.add(toy_model, name="terms", license=license_id)

    assert refusal.value.reason == "LICENSE_NOT_ACKNOWLEDGED"
    assert refusal.value.fields[0].field == "license"
    assert told == []


async def test_who_answers_is_recorded_with_licence_and_source(
    client: AsyncClient, toy_model: Path, tmp_path: Path
) -> None:
    who = (await client.keys.whoami()).principal
    path = write(tmp_path, chat("answered", "a"))

    answer = await client.datasets.upload(
        path,
        name="answered",
        license="CC-BY-NC-4.0",
        acknowledge_license=True,
        origin="the archive of the lab",
    )
    model = await client.models.add(toy_model, name="answered", acknowledge_license=True)

    for found, license_id in ((answer.dataset, "CC-BY-NC-4.0"), (model, "unknown")):
        assert (found.license, found.license_acknowledged_by) == (license_id, who)
    assert answer.dataset.source.kind == "upload"
    assert answer.dataset.source.origin == "the archive of the lab"


async def test_data_without_a_licence_is_the_callers_own(
    client: AsyncClient, tmp_path: Path
) -> None:
    answer = await client.datasets.upload(write(tmp_path, chat("own", "a")), name="own")

    assert (answer.dataset.license, answer.dataset.license_acknowledged_by) == ("own", "")


async def test_a_model_without_a_licence_is_of_an_unknown_one(
    client: AsyncClient, toy_model: Path
) -> None:
    with pytest.raises(InvalidArgument, match="is not known"):
        await client.models.add(toy_model, name="nameless")


async def test_a_free_licence_needs_nobody(client: AsyncClient, tmp_path: Path) -> None:
    path = write(tmp_path, chat("free", "a"))

    answer = await client.datasets.upload(
        path, name="free", license="Apache-2.0", acknowledge_license=True
    )

    assert answer.dataset.license_acknowledged_by == ""


async def test_a_column_map_is_part_of_what_a_dataset_is(
    client: AsyncClient, tmp_path: Path
) -> None:
    path = tmp_path / "qa.csv"
    path.write_text("question,reply\nq,a\nr,b\n")
    columns = {"prompt": "question", "completion": "reply"}

    mapped = await client.datasets.upload(path, name="mapped", columns=columns)
    plain = await client.datasets.upload(path, name="mapped")

    assert mapped.is_accepted
    assert dict(mapped.dataset.columns) == columns
    assert (mapped.dataset.row_kind, mapped.dataset.row_count) == ("prompt_completion", 2)
    assert plain.dataset.state == pb.ENTRY_STATE_REFUSED
    assert plain.dataset.revision != mapped.dataset.revision


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"promt": "question"}, "promt"),
        ({"prompt": ""}, "name of a column"),
        ({"prompt": "x\0"}, "name of a column"),
        ({"prompt": "same", "completion": "same"}, "twice"),
    ],
)
async def test_a_column_map_that_is_none_is_refused_before_anything_is_sent(
    client: AsyncClient, tmp_path: Path, columns: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        await client.datasets.upload(write(tmp_path, chat("q", "a")), name="c", columns=columns)


async def test_a_kind_of_file_that_holds_no_rows_is_refused_before_it_is_sent(
    client: AsyncClient, tmp_path: Path
) -> None:
    for name in ("rows.xlsx", "rows.gz", "rows.pkl", "rows"):
        (tmp_path / name).write_text("x")
        with pytest.raises(InvalidArgument, match="jsonl"):
            await client.datasets.upload(tmp_path / name, name="kind")
