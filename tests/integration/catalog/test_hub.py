"""The process that talks to hubs, with the unmodified client library, against a small hub."""

import asyncio
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from lehr.egress import EgressRefused
from lehr.errors import PlatformError
from services.catalog.hub.calling import Hub
from tests.support.hub_process import MODEL, ROWS, TOKEN, children, fetch, resolve
from tests.support.hub_stub import HubStub, a_hub
from tests.support.targets import Target


@pytest.fixture
def stub() -> Iterator[HubStub]:
    with a_hub() as running:
        yield running


@pytest.fixture
def hub(stub: HubStub, tmp_path: Path) -> Hub:
    return Hub(
        endpoint=stub.endpoint, allowed=f"{stub.host},{stub.cdn}", folder=tmp_path / "children"
    )


async def test_a_branch_is_fixed_to_the_commit_that_it_means_now(hub: Hub, stub: HubStub) -> None:
    repo = stub.add("model", "acme/tiny", MODEL, card={"license": "mit"})
    first = await resolve(hub, "model", "acme/tiny")
    repo.commit({**MODEL, "config.json": b"{}"})
    second = await resolve(hub, "model", "acme/tiny")
    pinned = await resolve(hub, "model", "acme/tiny", revision=first["commit"])
    assert [first["commit"], second["commit"]] == list(repo.commits)
    assert pinned == first
    assert first["license"] == "mit"


async def test_a_model_comes_without_code_pickles_and_second_copies(
    hub: Hub, stub: HubStub
) -> None:
    extra = {
        "modeling_tiny.py": b"open('marker', 'w')",
        "pytorch_model.bin": b"pickle",
        "consolidated.safetensors": b"again",
        "onnx/model.onnx": b"onnx",
        "training_args.bin": b"pickle",
    }
    stub.add("model", "acme/tiny", MODEL | extra)
    assert await fetch(hub, "model", "acme/tiny") == MODEL
    assert not any(stub.requests_of(path) for path in extra)


async def test_large_files_come_from_another_host_that_never_sees_the_token(
    hub: Hub, stub: HubStub
) -> None:
    stub.add("model", "acme/gated", MODEL, is_gated=True)
    stub.tokens[TOKEN] = {"acme/gated"}
    assert await fetch(hub, "model", "acme/gated", token=TOKEN) == MODEL
    assert {one.authorization for one in stub.requests_of("config.json")} == {f"Bearer {TOKEN}"}
    from_cdn = [one for one in stub.seen if one.server == "cdn"]
    assert from_cdn
    assert {one.authorization for one in from_cdn} == {""}


@pytest.mark.parametrize("kind", ["model", "dataset"])
async def test_a_gated_repository_says_what_to_do(hub: Hub, stub: HubStub, kind: str) -> None:
    stub.add(kind, "acme/gated", MODEL | {"train.jsonl": ROWS}, is_gated=True)
    with pytest.raises(PlatformError, match="lehr credentials put") as refused:
        await fetch(hub, kind, "acme/gated")
    assert refused.value.reason == "SOURCE_GATED"
    with pytest.raises(PlatformError, match="'mine' does not open") as refused:
        await fetch(hub, kind, "acme/gated", token=TOKEN)
    assert refused.value.reason == "SOURCE_GATED"
    assert TOKEN not in str(refused.value)


async def test_a_private_repository_looks_like_none(hub: Hub, stub: HubStub) -> None:
    stub.add("model", "acme/private", MODEL, is_private=True)
    messages = set()
    for repo_id in ("acme/private", "acme/absent"):
        with pytest.raises(PlatformError) as refused:
            await resolve(hub, "model", repo_id)
        assert refused.value.reason == "SOURCE_NOT_FOUND"
        messages.add(str(refused.value).replace(repo_id, "it"))
    assert len(messages) == 1


async def test_a_revision_that_is_not_there_is_told(hub: Hub, stub: HubStub) -> None:
    stub.add("model", "acme/tiny", MODEL)
    with pytest.raises(PlatformError, match="no such branch") as refused:
        await resolve(hub, "model", "acme/tiny", revision="v9")
    assert refused.value.reason == "SOURCE_NOT_FOUND"


async def test_weights_as_pickles_alone_are_refused(hub: Hub, stub: HubStub) -> None:
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "pytorch_model.bin": b"pickle"}
    stub.add("model", "acme/pickle", files)
    with pytest.raises(PlatformError, match="run code") as refused:
        await resolve(hub, "model", "acme/pickle")
    assert refused.value.reason == "PICKLE_WEIGHTS"
    assert not stub.requests_of("pytorch_model.bin")


def pickled(value: Any) -> bytes:
    torch = pytest.importorskip("torch")
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


class Marker:
    """Leaves a file where it is unpickled by a reader that runs what a pickle says."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


async def test_a_pickle_of_an_allowed_commit_becomes_safetensors(hub: Hub, stub: HubStub) -> None:
    torch = pytest.importorskip("torch")
    shared = torch.arange(6.0).reshape(2, 3)
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    index = {"weight_map": {"a": names[0], "b": names[0], "c": names[1]}}
    files = {
        "config.json": b"{}",
        names[0]: pickled({"a": shared, "b": shared}),
        names[1]: pickled({"c": shared[:, :2]}),
        "pytorch_model.bin.index.json": json.dumps(index).encode(),
    }
    repo = stub.add("model", "acme/pickle", files)
    allowed = f"acme/pickle@{repo.branches['main']}"
    found = await fetch(hub, "model", "acme/pickle", allow_pickle=allowed)
    weights = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    assert set(found) == {"config.json", "model.safetensors.index.json", *weights}
    tensors = safetensors.numpy.load(found[weights[0]]) | safetensors.numpy.load(found[weights[1]])
    assert {name: one.tolist() for name, one in tensors.items()} == {
        "a": shared.tolist(),
        "b": shared.tolist(),
        "c": shared[:, :2].tolist(),
    }
    mapped = json.loads(found["model.safetensors.index.json"])["weight_map"]
    assert mapped == {"a": weights[0], "b": weights[0], "c": weights[1]}
    repo.commit(files | {"new": b""})
    with pytest.raises(PlatformError, match="administrator"):
        await fetch(hub, "model", "acme/pickle", allow_pickle=allowed)


async def test_an_allowed_pickle_that_would_run_code_runs_none(
    hub: Hub, stub: HubStub, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    repo = stub.add(
        "model",
        "acme/evil",
        {"config.json": b"{}", "pytorch_model.bin": pickled({"a": Marker(marker)})},
    )
    with pytest.raises(PlatformError, match="no pickle of plain weights"):
        await fetch(hub, "model", "acme/evil", allow_pickle=f"acme/evil@{repo.branches['main']}")
    assert not marker.exists()


@pytest.mark.parametrize("path", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("wrong", [b"other bytes", None])
async def test_other_bytes_than_listed_are_refused(
    hub: Hub, stub: HubStub, path: str, wrong: bytes | None
) -> None:
    stub.add("model", "acme/tiny", MODEL)
    stub.wrong[path] = wrong or bytes(len(MODEL[path]))
    with pytest.raises(PlatformError) as refused:
        await fetch(hub, "model", "acme/tiny")
    assert refused.value.reason == "SOURCE_CORRUPT"


async def test_a_transfer_that_is_cut_goes_on_where_it_ended(hub: Hub, stub: HubStub) -> None:
    # The client keeps whole pieces of 10 MiB.
    files = MODEL | {"model.safetensors": bytes(24 << 20)}
    stub.add("model", "acme/tiny", files)
    stub.cuts["model.safetensors"] = 1
    assert await fetch(hub, "model", "acme/tiny") == files
    ranges = [one.range for one in stub.requests_of("model.safetensors") if one.server == "cdn"]
    assert ranges == ["", f"bytes={10 << 20}-"]


async def test_a_source_that_is_too_slow_is_given_up_and_its_process_ended(
    hub: Hub, stub: HubStub
) -> None:
    stub.add("model", "acme/slow", MODEL)
    stub.delays["model.safetensors"] = 60
    began = time.monotonic()
    with pytest.raises(PlatformError, match="longer than 8 s") as refused:
        await fetch(hub, "model", "acme/slow", seconds=8)
    assert refused.value.reason == "IMPORT_TIMED_OUT"
    # The client itself gives up after six times eleven seconds.
    assert time.monotonic() - began < 60
    assert not children()
    assert not list(hub.folder.iterdir())


async def test_nothing_is_left_of_an_import(hub: Hub, stub: HubStub) -> None:
    stub.add("model", "acme/tiny", MODEL)
    await fetch(hub, "model", "acme/tiny")
    assert not list(hub.folder.iterdir())
    assert not children()


async def test_the_secret_is_in_no_argument_and_no_environment(hub: Hub, stub: HubStub) -> None:
    stub.add("model", "acme/gated", MODEL, is_gated=True)
    stub.tokens[TOKEN] = {"acme/gated"}
    stub.delays["model.safetensors"] = 1
    importing = asyncio.create_task(fetch(hub, "model", "acme/gated", token=TOKEN))
    looked_at = 0
    while not importing.done():
        for child in await asyncio.to_thread(children):
            for name in ("cmdline", "environ"):
                try:
                    shown = Path(f"/proc/{child.pid}/{name}").read_bytes()
                except OSError:
                    continue
                assert TOKEN.encode() not in shown
                looked_at += bool(shown)
        await asyncio.sleep(0.05)
    assert await importing == MODEL
    assert looked_at > 10


@pytest.mark.parametrize("path", ["config.json", "model.safetensors"])
async def test_a_file_that_redirects_into_the_network_is_refused(
    hub: Hub, stub: HubStub, internal: Target, path: str
) -> None:
    stub.add("model", "acme/tiny", MODEL)
    stub.redirects[path] = f"http://127.0.0.1:{internal.port}/latest/meta-data/"
    with pytest.raises(PlatformError) as refused:
        await fetch(hub, "model", "acme/tiny")
    assert refused.value.reason == "EGRESS_REFUSED"
    assert str(refused.value) == str(EgressRefused())
    assert internal.connections == 0


async def test_a_hub_in_the_network_that_nobody_allowed_is_refused(
    hub: Hub, internal: Target, tmp_path: Path
) -> None:
    bad = Hub(endpoint=f"http://127.0.0.1:{internal.port}", allowed="", folder=tmp_path / "bad")
    for kind in ("model", "dataset"):
        with pytest.raises(PlatformError) as refused:
            await resolve(bad, kind, "acme/tiny")
        assert refused.value.reason == "EGRESS_REFUSED"
    assert internal.connections == 0


async def test_a_hub_that_is_allowed_by_its_name_is_reached(stub: HubStub, tmp_path: Path) -> None:
    place = stub.host.replace("127.0.0.1", "localhost")
    named = Hub(endpoint=f"http://{place}", allowed=f"{place},{stub.cdn}", folder=tmp_path)
    stub.add("model", "acme/tiny", MODEL)
    assert await fetch(named, "model", "acme/tiny") == MODEL


async def test_the_hub_is_searched(hub: Hub, stub: HubStub) -> None:
    stub.add("model", "acme/few", MODEL, downloads=3, card={"license": "mit"})
    stub.add(
        "model",
        "other/few-code",
        {"config.json": b"{}", "pytorch_model.bin": b""},
        downloads=9,
        is_gated=True,
        tags=["custom_code", "license:apache-2.0"],
        config={"model_type": "odd"},
    )
    stub.add("model", "acme/many", MODEL)
    found = await hub.ask(
        "search", what="hub", credential="", secret={}, text="few", kind="model", limit=20
    )
    first, second = found["entries"]
    assert first["repo_id"] == "other/few-code"
    assert first["is_gated"]
    assert first["has_code"]
    assert not first["has_safetensors"]
    assert first["license"] == "apache-2.0"
    assert first["model_type"] == "odd"
    assert second["repo_id"] == "acme/few"
    assert second["parameter_count"] == 75_000
    assert second["license"] == "mit"
    assert len(second["commit"]) == 40
