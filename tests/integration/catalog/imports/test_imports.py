"""Imports from a hub, through gateway, catalog, database and object store."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1.hub_pb2 import HubSource
from lehr.client import AsyncClient
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


async def test_the_same_rows_at_another_commit_are_refused_as_there_already(
    client: AsyncClient, hub: HubStub
) -> None:
    repo = hub.add("dataset", "acme/same", {"train.jsonl": rows(10)}, **FREE)
    name = a_name()
    first = await client.imports.dataset(HubSource(repo_id="acme/same"), terms=terms(name))
    repo.commit({"train.jsonl": rows(10), "notes.md": b"new"})
    second = await client.imports.dataset(HubSource(repo_id="acme/same"), terms=terms(name))
    assert second.state == pb.ENTRY_STATE_REFUSED
    assert first.revision[:12] in second.problems[0].description


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
