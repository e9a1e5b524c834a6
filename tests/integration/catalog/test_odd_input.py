"""Input that nobody should send: each is refused in words, and none reaches another tenant."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1 import catalog_pb2_grpc
from lehr.api.common.v1.common_pb2 import Page
from lehr.client import AsyncClient, transfer
from lehr.errors import InvalidArgument, NotFound, PermissionDenied
from lehr.samples.canonical import read_canonical
from tests.integration.catalog.test_datasets import chat, write
from tests.support.doors import a_client
from tests.support.one_service import OneService

Stub = catalog_pb2_grpc.CatalogServiceStub


@pytest.fixture
async def stranger(gateway: OneService, client: AsyncClient) -> AsyncIterator[AsyncClient]:
    """A client of the tenant acme."""
    made = await client.keys.create("acme", tenant="acme")
    async with a_client(gateway, made.secret) as connected:
        yield connected


def copy(model: Path, folder: Path, **files: str | bytes) -> Path:
    """Return a copy of a model with other files; a dot in a name is written ``__``."""
    folder.mkdir(exist_ok=True)
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for name, content in files.items():
        raw = content.encode() if isinstance(content, str) else content
        (folder / name.replace("__", ".")).write_bytes(raw)
    return folder


def _token(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


@pytest.mark.parametrize(
    "token", ["x", "\xe9", _token(5), _token([1]), _token(None), _token(["\0", "x"]), "a" * 5000]
)
async def test_a_page_token_of_ones_own_making_is_refused(call: Any, token: str) -> None:
    page = Page(page_token=token)

    with pytest.raises(InvalidArgument, match="page_token"):
        await call("ListDatasets", pb.ListDatasetsRequest(page=page))
    with pytest.raises(InvalidArgument, match="page_token"):
        await call("SearchModels", pb.SearchModelsRequest(page=page))


@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        ("ListDatasets", lambda text: pb.ListDatasetsRequest(name_contains=text)),
        ("SearchModels", lambda text: pb.SearchModelsRequest(name_contains=text)),
        ("InspectDataset", lambda text: pb.InspectDatasetRequest(dataset=f"ds_{text}")),
        ("GetModel", lambda text: pb.GetModelRequest(model=f"model_{text}")),
        ("CommitModel", lambda text: pb.CommitModelRequest(model_id=f"model_{text}")),
        ("CommitDataset", lambda text: pb.CommitDatasetRequest(dataset_id=f"ds_{text}")),
        ("AddDataset", lambda text: pb.AddDatasetRequest(name=text)),
    ],
)
async def test_a_nul_is_refused_everywhere(call: Any, method: str, request_of: Any) -> None:
    with pytest.raises(InvalidArgument):
        await call(method, request_of("a\0b"))


async def test_the_largest_page_is_given_however_much_is_asked(call: Any) -> None:
    answer = await call("ListDatasets", pb.ListDatasetsRequest(page=Page(page_size=2**32 - 1)))

    assert answer.next_page_token == ""


async def test_pages_hold_every_dataset_once(
    call: Any, client: AsyncClient, tmp_path: Path
) -> None:
    for name in ("page-b", "page-a", "page-c"):
        await client.datasets.upload(write(tmp_path, chat(name, "a")), name=name)

    names, token = [], ""
    for _ in range(3):
        page = Page(page_size=1, page_token=token)
        request = pb.ListDatasetsRequest(name_contains="page-", page=page)
        answer = await call("ListDatasets", request)
        names += [one.name for one in answer.datasets]
        token = answer.next_page_token

    assert (names, token) == (["page-a", "page-b", "page-c"], "")


async def test_a_licence_is_short_printable_text(client: AsyncClient, toy_model: Path) -> None:
    for text in ("MIT\0", "x" * 201):
        with pytest.raises(InvalidArgument, match="license"):
            await client.models.add(toy_model, name="licence", license=text)


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer__json": "{}"},
        {"tokenizer__json": "not json"},
        {"tokenizer__json": '{"model": {"type": "Evil"}}'},
        {"tokenizer_config__json": "["},
        {"tokenizer_config__json": "[]"},
        {"tokenizer_config__json": '{"chat_template": [{"odd": 1}]}'},
        {"tokenizer_config__json": '{"auto_map": {"AutoTokenizer": "evil.Tokenizer"}}'},
        {"processor_config__json": '{"auto_map": {"AutoProcessor": "evil.Processor"}}'},
        {"chat_template__jinja": "{% for"},
        {"chat_template__jinja": b"\xff\xfe"},
        {"config__json": "[" * 100_000},
        {"config__json": "{}"},
        {"config__json": '{"model_type": "a\\u0000b"}'},
        {"model__safetensors": b"\xff" * 100},
        {"model__safetensors": (2).to_bytes(8, "little") + b"{}"},
    ],
    ids=lambda files: " ".join(f"{name} {content[:20]!r}" for name, content in files.items()),
)
async def test_a_model_that_cannot_be_used_is_refused_in_words_and_removed(
    client: AsyncClient, toy_model: Path, tmp_path: Path, files: dict[str, Any]
) -> None:
    folder = copy(toy_model, tmp_path / "model", **files)

    with pytest.raises(InvalidArgument) as refusal:
        await client.models.add(folder, name="unusable", license="MIT")

    assert refusal.value.reason != "INTERNAL"
    with pytest.raises(NotFound):
        await client.models.get("unusable")


async def test_a_size_that_was_announced_wrong_may_be_announced_again(
    call: Any, client: AsyncClient, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("again", "a"))
    wrong = transfer.describe(path)
    wrong.size_bytes += 1
    await call("AddDataset", pb.AddDatasetRequest(name="again", files=[wrong]))

    answer = await client.datasets.upload(path, name="again")

    assert answer.is_accepted


async def put_all(uploads: Any, folder: Path) -> dict[str, str]:
    """Send every missing part of an upload; return the address of each file's first part."""
    paths = {one.file.name: folder / one.file.name for one in uploads}
    await transfer.upload_parts(paths, uploads, transfer.Account(None))
    return {one.file.name: one.missing_parts[0].url for one in uploads}


async def test_an_overwrite_through_an_upload_address_after_the_commit_has_no_effect(
    catalog: OneService, call: Any, client: AsyncClient, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("exchanged", "a"))
    announced = pb.AddDatasetRequest(name="exchanged", files=[transfer.describe(path)])
    added = await call("AddDataset", announced)
    urls = await put_all(added.uploads, tmp_path)
    await call("CommitDataset", pb.CommitDatasetRequest(dataset_id=added.dataset_id))
    evil = path.read_bytes().replace(b"exchanged", b"EXCHANGED")

    httpx.put(urls[path.name], content=evil, trust_env=False).raise_for_status()
    await client.datasets.download("exchanged", tmp_path / "got")
    async with catalog.called_by("trainer_runner", tenant="default") as channel:
        request = pb.DownloadFilesRequest(rows_of=added.dataset_id)
        links = (await Stub(channel).DownloadFiles(request, timeout=30)).files
    await transfer.download(links, tmp_path / "rows")

    assert (tmp_path / "got" / path.name).read_bytes() == path.read_bytes()
    [row] = read_canonical(tmp_path / "rows" / "rows.jsonl.zst")
    assert "EXCHANGED" not in str(row)


async def test_canonical_rows_are_for_services_alone(
    call: Any, client: AsyncClient, tmp_path: Path
) -> None:
    answer = await client.datasets.upload(write(tmp_path, chat("inner", "a")), name="inner")

    with pytest.raises(PermissionDenied, match="for services"):
        await call("DownloadFiles", pb.DownloadFilesRequest(rows_of=answer.dataset.dataset_id))


async def test_a_tokenizer_that_a_tenant_exchanges_stays_what_it_was_for_all(
    catalog: OneService,
    call: Any,
    client: AsyncClient,
    stranger: AsyncClient,
    toy_model: Path,
    tmp_path: Path,
) -> None:
    # Both tenants have the same public model, so they share one copy on the catalog's disk.
    files = [transfer.describe(path) for path in sorted(toy_model.iterdir())]
    added = await call("AddModel", pb.AddModelRequest(name="shared", files=files, license="MIT"))
    urls = await put_all(added.uploads, toy_model)
    await call("CommitModel", pb.CommitModelRequest(model_id=added.model_id))
    await stranger.models.add(toy_model, name="shared", license="MIT")
    await stranger.datasets.upload(write(tmp_path, chat("q", "a")), name="theirs")
    before = await stranger.datasets.preview("theirs", model="shared")

    evil = json.dumps({"chat_template": "{{ 'evil' }}"}).encode()
    httpx.put(urls["tokenizer_config.json"], content=evil, trust_env=False).raise_for_status()
    # A restart empties the copies; the first to ask fetches them again.
    catalog.control.stop()
    catalog.control.start()
    await client.datasets.upload(write(tmp_path, chat("q", "a")), name="ours")
    ours = await client.datasets.preview("ours", model="shared")

    after = await stranger.datasets.preview("theirs", model="shared")
    assert list(after) == list(before)
    assert [one.text for one in ours] == [one.text for one in before]
