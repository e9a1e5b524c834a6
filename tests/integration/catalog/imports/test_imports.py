"""Imports from a hub, through gateway, catalog, database and object store."""

import asyncio
import io
import json
import time
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1.hub_pb2 import HubSource, ImportDatasetRequest, ImportModelRequest
from lehr.client import AsyncClient, transfer
from lehr.egress import EgressRefused
from lehr.errors import PlatformError
from tests.support.hub_stub import HubStub
from tests.support.importing import (
    FREE,
    TOKEN,
    a_name,
    rows,
    terms,
)
from tests.support.one_service import OneService
from tests.support.targets import Target


@pytest.fixture(autouse=True)
def no_tricks(hub: HubStub) -> None:
    """Each test begins with an honest hub."""
    for tricks in (hub.redirects, hub.wrong, hub.delays, hub.cuts, hub.repos, hub.tokens):
        tricks.clear()
    hub.seen.clear()


@pytest.fixture
def model_files(toy_model: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in toy_model.iterdir() if path.is_file()}


async def test_a_dataset_is_imported_at_a_commit_and_kept_as_published(
    client: AsyncClient, hub: HubStub, tmp_path: Path
) -> None:
    files = {"data/train-0.jsonl": rows(30), "data/train-1.jsonl": rows(20, "more"), "x.md": b"x"}
    repo = hub.add("dataset", "acme/rows", files, **FREE)
    dataset = await client.imports.dataset(HubSource(repo_id="acme/rows"), terms=terms())
    assert dataset.state == pb.ENTRY_STATE_READY
    assert dataset.row_count == 50
    assert dataset.source.kind == "hub"
    assert dataset.source.origin == "acme/rows"
    assert dataset.source.commit == repo.branches["main"]
    assert dataset.license == "mit"
    assert dataset.license_acknowledged_by == ""
    await client.datasets.download(dataset.dataset_id, tmp_path)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert kept == {"train-0.jsonl": rows(30), "train-1.jsonl": rows(20, "more")}


async def test_a_moved_branch_is_another_revision_and_the_first_keeps_its_commit(
    client: AsyncClient, hub: HubStub
) -> None:
    repo = hub.add("dataset", "acme/moving", {"train.jsonl": rows(10)}, **FREE)
    source, name = HubSource(repo_id="acme/moving", revision="main"), a_name()
    first = await client.imports.dataset(source, terms=terms(name))
    again = await client.imports.dataset(source, terms=terms(name))
    assert again == first
    assert len(hub.requests_of("train.jsonl")) == 1
    repo.commit({"train.jsonl": rows(11)})
    second = await client.imports.dataset(source, terms=terms(name))
    assert second.dataset_id != first.dataset_id
    assert second.revision != first.revision
    assert [first.source.commit, second.source.commit] == list(repo.commits)
    assert (await client.datasets.inspect(first.dataset_id)).dataset == first
    assert (await client.datasets.inspect(name)).dataset.dataset_id == second.dataset_id
    pinned = HubSource(repo_id="acme/moving", revision=first.source.commit)
    assert await client.imports.dataset(pinned, terms=terms(name)) == first


async def test_the_same_bytes_at_another_commit_are_an_entry_that_names_its_commit(
    client: AsyncClient, hub: HubStub, call: Any, model_files: dict[str, bytes], tmp_path: Path
) -> None:
    repo = hub.add("model", "acme/same", model_files, **FREE)
    source, name = HubSource(repo_id="acme/same"), a_name()
    first = await client.imports.model(source, terms=terms(name))
    moved = repo.commit({**model_files, "notes.txt": b"new"})
    second = await client.imports.model(source, terms=terms(name))
    assert second.model_id != first.model_id
    assert second.revision == first.revision
    assert [first.source.commit, second.source.commit] == list(repo.commits)
    assert (await client.models.get(name)).source.commit == moved
    assert (await client.models.get(first.model_id)) == first
    pinned = HubSource(repo_id="acme/same", revision=first.source.commit)
    assert await client.imports.model(pinned, terms=terms(name)) == first
    await client.models.delete(first.model_id)
    answer = await call("DownloadFiles", pb.DownloadFilesRequest(model=second.model_id))
    await transfer.download(answer.files, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {file.name for file in second.files}


async def test_what_was_imported_may_also_be_uploaded_under_the_same_name(
    client: AsyncClient, hub: HubStub, tmp_path: Path
) -> None:
    hub.add("dataset", "acme/twice", {"train.jsonl": rows(10)}, **FREE)
    name = a_name()
    imported = await client.imports.dataset(HubSource(repo_id="acme/twice"), terms=terms(name))
    path = tmp_path / "train.jsonl"
    path.write_bytes(rows(10))
    uploaded = (await client.datasets.upload(path, name=name)).dataset
    assert uploaded.revision == imported.revision
    assert (imported.source.kind, uploaded.source.kind) == ("hub", "upload")


async def test_a_source_that_is_away_is_asked_again_while_the_entry_says_why_and_when(
    client: AsyncClient, hub: HubStub, call: Any
) -> None:
    hub.add("dataset", "acme/away", {"a.jsonl": rows(10), "b.jsonl": rows(10, "more")}, **FREE)
    hub.cuts["b.jsonl"] = 1000
    request = ImportDatasetRequest(name=a_name(), hub=HubSource(repo_id="acme/away"))
    dataset_id = (await call("ImportDataset", request)).dataset_id
    told = set()

    async def refused() -> bool:
        dataset = (await client.datasets.inspect(dataset_id)).dataset
        if dataset.state == pb.ENTRY_STATE_IMPORTING:
            told.update((one.reason, one.description) for one in dataset.problems)
        return dataset.state == pb.ENTRY_STATE_REFUSED

    await until_so(refused, seconds=180)
    problems = (await client.datasets.inspect(dataset_id)).dataset.problems
    assert {reason for reason, _ in told} == {"PUT_OFF"}
    for tries in (3, 4, 5):
        said = [text for _, text in told if f"in vain {tries} times" in text]
        assert said, (tries, told)
        assert "next try 20" in said[0]
    assert "acme/away of the hub" in problems[0].description
    assert "import it again" in problems[0].description
    assert len(hub.requests_of("a.jsonl")) == 1

    hub.cuts.clear()
    again = await call("ImportDataset", request)
    assert again.dataset_id == dataset_id
    assert (await client.datasets.settled(dataset_id)).row_count == 20


async def test_a_model_whose_source_is_away_says_so_and_is_ready_once_it_is_back(
    client: AsyncClient, hub: HubStub, call: Any, model_files: dict[str, bytes]
) -> None:
    hub.add("model", "acme/absent", model_files, **FREE)
    hub.cuts["config.json"] = 1000
    request = ImportModelRequest(name=a_name(), hub=HubSource(repo_id="acme/absent"))
    model_id = (await call("ImportModel", request)).model_id

    async def waits() -> bool:
        return "in vain 2 times" in (await client.models.get(model_id)).refusal

    await until_so(waits)
    hub.cuts.clear()
    model = await client.models.settled(model_id)
    assert (model.state, model.refusal) == (pb.ENTRY_STATE_READY, "")


async def until_so(holds: Callable[[], Awaitable[bool]], *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        await asyncio.sleep(0.05)


def picture(color: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), color).save(out, "PNG")
    return out.getvalue()


async def test_a_folder_of_single_images_is_imported_as_the_zip_of_it_would_be(
    client: AsyncClient, hub: HubStub, tmp_path: Path
) -> None:
    described = [
        {"file_name": f"{name}.png", "prompt": f"Which colour has {name}?", "completion": name}
        for name in ("red", "blue")
    ]
    files = {
        "train/metadata.jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in described),
        "train/red.png": picture("red"),
        "train/blue.png": picture("blue"),
        "test/metadata.jsonl": json.dumps({**described[0], "file_name": "green.png"}).encode(),
        "test/green.png": picture("green"),
    }
    repo = hub.add("dataset", "acme/pictures", files, **FREE)
    source, name = HubSource(repo_id="acme/pictures"), a_name()
    dataset = await client.imports.dataset(source, terms=terms(name))
    assert (dataset.state, dataset.row_count, dataset.image_row_count) == (
        pb.ENTRY_STATE_READY,
        2,
        2,
    )
    await client.datasets.download(dataset.dataset_id, tmp_path)
    with zipfile.ZipFile(tmp_path / "folder.zip") as packed:
        kept = {one: packed.read(one) for one in packed.namelist()}
    assert kept == {path: body for path, body in files.items() if path.startswith("train/")}
    # The same files make the same bytes, whenever they are packed.
    repo.commit({**files, "notes.md": b"new"})
    again = await client.imports.dataset(source, terms=terms(name))
    assert again.revision == dataset.revision
    assert again.dataset_id != dataset.dataset_id


async def test_a_model_is_imported_without_its_code(
    client: AsyncClient, hub: HubStub, model_files: dict[str, bytes], tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    code = f"open({str(marker)!r}, 'w').write('ran')".encode()
    extra = {"modeling_toy.py": code, "tokenization_toy.py": code, "pytorch_model.bin": b"pickle"}
    repo = hub.add("model", "acme/toy", model_files | extra, **FREE)
    model = await client.imports.model(HubSource(repo_id="acme/toy"), terms=terms())
    assert model.state == pb.ENTRY_STATE_READY
    assert model.source.commit == repo.branches["main"]
    assert model.license == "mit"
    assert {file.name for file in model.files} <= set(model_files)
    assert not any(hub.requests_of(path) for path in extra)
    assert not marker.exists()


async def test_a_model_that_asks_for_its_own_code_is_refused(
    client: AsyncClient, hub: HubStub, model_files: dict[str, bytes]
) -> None:
    config = json.loads(model_files["config.json"]) | {"auto_map": {"AutoModel": "m.Toy"}}
    files = model_files | {"config.json": json.dumps(config).encode(), "m.py": b"raise"}
    hub.add("model", "acme/code", files, **FREE)
    with pytest.raises(PlatformError, match="code of its own"):
        await client.imports.model(HubSource(repo_id="acme/code"), terms=terms())


async def test_a_gated_model_needs_a_stored_credential(
    client: AsyncClient, hub: HubStub, model_files: dict[str, bytes]
) -> None:
    hub.add("model", "acme/gated", model_files, is_gated=True, **FREE)
    hub.tokens[TOKEN] = {"acme/gated"}
    with pytest.raises(PlatformError, match="lehr credentials put") as refused:
        await client.imports.model(HubSource(repo_id="acme/gated"), terms=terms())
    assert refused.value.reason == "SOURCE_GATED"
    source = HubSource(repo_id="acme/gated", credential="hub-token")
    with pytest.raises(PlatformError, match="lehr credentials put hub-token") as refused:
        await client.imports.model(source, terms=terms())
    assert refused.value.reason == "CREDENTIAL_NOT_FOUND"
    await client.credentials.put_hub_token("hub-token", TOKEN)
    model = await client.imports.model(source, terms=terms())
    assert model.state == pb.ENTRY_STATE_READY
    await client.credentials.delete("hub-token")
    await client.credentials.delete("hub-token")
    assert "hub-token" not in [one.name for one in await client.credentials.list()]


async def test_a_licence_that_is_not_free_must_be_acknowledged(
    client: AsyncClient, hub: HubStub
) -> None:
    held = {"card": {"license": "cc-by-nc-4.0"}}
    hub.add("dataset", "acme/held", {"train.jsonl": rows(5)}, **held)
    hub.add("dataset", "acme/unsaid", {"train.jsonl": rows(5)})
    for repo_id in ("acme/held", "acme/unsaid"):
        source = HubSource(repo_id=repo_id)
        with pytest.raises(PlatformError, match="acknowledge") as refused:
            await client.imports.dataset(source, terms=terms(license=""))
        assert refused.value.reason == "LICENSE_NOT_ACKNOWLEDGED"
        found = await client.imports.dataset(source, terms=terms(acknowledge_license=True))
        assert found.state == pb.ENTRY_STATE_READY
        assert found.license_acknowledged_by
    # The card is the source's own word: another one of the caller's changes nothing.
    with pytest.raises(PlatformError, match="acknowledge"):
        await client.imports.dataset(HubSource(repo_id="acme/held"), terms=terms(license="mit"))
    said = await client.imports.dataset(
        HubSource(repo_id="acme/unsaid"), terms=terms(license="mit")
    )
    assert said.license == "mit"
    assert said.license_acknowledged_by == ""


async def test_bytes_that_differ_from_the_listing_refuse_the_import(
    client: AsyncClient, hub: HubStub
) -> None:
    hub.add("dataset", "acme/wrong", {"train.jsonl": rows(10)}, **FREE)
    hub.wrong["train.jsonl"] = rows(10, "wor")
    found = await client.imports.dataset(HubSource(repo_id="acme/wrong"), terms=terms())
    assert found.state == pb.ENTRY_STATE_REFUSED
    assert "not the file that the hub lists" in found.problems[0].description


async def test_too_much_is_refused_before_any_of_it_is_fetched(
    client: AsyncClient, hub: HubStub
) -> None:
    hub.add("dataset", "acme/large", {"train.parquet": bytes(65 << 20)}, **FREE)
    with pytest.raises(PlatformError, match="at most") as refused:
        await client.imports.dataset(HubSource(repo_id="acme/large"), terms=terms())
    assert refused.value.reason == "IMPORT_REFUSED"
    assert not hub.requests_of("train.parquet")


async def test_a_killed_catalog_goes_on_with_what_has_not_arrived(
    client: AsyncClient, hub: HubStub, catalog: OneService
) -> None:
    files = {f"train-{number}.jsonl": rows(100, f"file {number}") for number in range(4)}
    hub.add("dataset", "acme/long", {**files, "train-4.jsonl": rows(100)}, **FREE)
    hub.delays["train-4.jsonl"] = 30
    name = a_name()
    importing = asyncio.create_task(
        client.imports.dataset(HubSource(repo_id="acme/long"), terms=terms(name))
    )
    await until(lambda: bool(hub.requests_of("train-4.jsonl")))
    pid = catalog.control.pid
    children = psutil.Process(pid).children(recursive=True)
    catalog.control.kill()
    await until(lambda: not any(one.is_running() and one.status() != "zombie" for one in children))
    hub.delays.clear()
    catalog.control.start()
    dataset = await importing
    assert dataset.state == pb.ENTRY_STATE_READY
    assert dataset.row_count == 500
    fetched = {path: len(hub.requests_of(path)) for path in files}
    assert fetched == dict.fromkeys(files, 1)
    assert len(hub.requests_of("train-4.jsonl")) == 2


async def until(holds: Callable[[], bool], *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline, "it did not come to hold"
        await asyncio.sleep(0.05)


async def test_the_hub_is_searched_through_the_gateway(client: AsyncClient, hub: HubStub) -> None:
    hub.add("model", "acme/alpha", {"config.json": b"{}", "model.safetensors": bytes(400)}, **FREE)
    hub.add("dataset", "acme/alpha-rows", {"train.jsonl": rows(3)}, is_gated=True)
    [model] = await client.imports.search("alpha")
    [dataset] = await client.imports.search("alpha", kind="dataset")
    assert (model.repo_id, model.license, model.parameter_count) == ("acme/alpha", "mit", 100)
    assert model.has_safetensors
    assert (dataset.repo_id, dataset.is_gated) == ("acme/alpha-rows", True)


async def test_a_file_of_the_hub_that_redirects_into_the_network_refuses_the_import(
    client: AsyncClient, hub: HubStub, internal: Target
) -> None:
    hub.add("dataset", "acme/evil", {"train.jsonl": rows(10)}, **FREE)
    hub.redirects["train.jsonl"] = f"http://127.0.0.1:{internal.port}/"
    found = await client.imports.dataset(HubSource(repo_id="acme/evil"), terms=terms())
    assert found.state == pb.ENTRY_STATE_REFUSED
    assert str(EgressRefused()) in found.problems[0].description
    assert internal.connections == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"repo_id": "../etc"}, "repo_id"),
        ({"repo_id": "a/b/c"}, "repo_id"),
        ({"repo_id": ""}, "repo_id"),
        ({"repo_id": "a/b", "revision": "../x"}, "revision"),
        ({"repo_id": "a/b", "revision": "a b"}, "revision"),
        ({"repo_id": "a/b", "config": "a\0b"}, "config"),
    ],
)
async def test_a_source_that_cannot_be_one_is_refused_before_anybody_is_asked(
    client: AsyncClient, hub: HubStub, change: dict[str, str], field: str
) -> None:
    with pytest.raises(PlatformError, match=field):
        await client.imports.dataset(HubSource(**change), terms=terms())
    assert not hub.seen
