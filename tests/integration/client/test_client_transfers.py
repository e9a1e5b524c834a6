"""Bytes up and down: counted exactly, verified on this side, and sent again when it breaks."""

from collections import Counter
from pathlib import Path

import httpx
import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1 import catalog_pb2_grpc
from lehr.api.catalog.v1.upload_pb2 import PartLink, UploadFile
from lehr.api.common.v1.common_pb2 import FileLink
from lehr.client import AsyncClient, transfer
from lehr.client.connection import Connection, Endpoint
from lehr.client.transfer import FileCorrupt, TransferFailed
from lehr.errors import InvalidArgument
from lehr.objects import ObjectStore
from lehr.stack.ports import LOOPBACK
from tests.integration.catalog.test_datasets import chat, write
from tests.support.doors import FIRST_KEY
from tests.support.one_service import OneService
from tests.support.servers import ObjectsForTests

LARGE_ROWS = 40


def large(folder: Path, mark: str) -> Path:
    """Return a dataset of some twelve chunks."""
    rows = [chat(f"{mark} {number}", "x" * 300_000) for number in range(LARGE_ROWS)]
    return write(folder, *rows)


async def links_of(gateway: OneService, dataset: str) -> list[FileLink]:
    """Return the signed addresses of a dataset."""
    connection = Connection(Endpoint(address=f"{LOOPBACK}:{gateway.port}", api_key=FIRST_KEY))
    stub = catalog_pb2_grpc.CatalogServiceStub(connection.channel)
    answer = await connection.call(stub.DownloadFiles, pb.DownloadFilesRequest(dataset=dataset))
    await connection.close()
    return list(answer.files)


async def test_what_an_upload_tells_adds_up_to_the_file(
    client: AsyncClient, tmp_path: Path
) -> None:
    path, told = large(tmp_path, "sum"), Counter[str]()

    answer = await client.datasets.upload(
        path, name="sum", progress=lambda name, count: told.update({name: count})
    )

    assert told == {path.name: path.stat().st_size}
    assert answer.dataset.size_bytes == path.stat().st_size


async def test_what_is_uploaded_is_told_for_every_file_of_a_model(
    client: AsyncClient, toy_model: Path
) -> None:
    told: Counter[str] = Counter()

    await client.models.add(
        toy_model,
        name="told",
        license="MIT",
        progress=lambda name, count: told.update({name: count}),
    )

    assert told == {path.name: path.stat().st_size for path in toy_model.iterdir()}


async def test_a_second_upload_of_the_same_bytes_sends_nothing(
    client: AsyncClient, tmp_path: Path
) -> None:
    path, told = write(tmp_path, chat("once", "a")), Counter[str]()
    await client.datasets.upload(path, name="once")

    await client.datasets.upload(
        path, name="once", progress=lambda name, count: told.update({name: count})
    )

    assert not told


async def test_an_upload_survives_the_death_of_the_object_store(
    client: AsyncClient, s3: ObjectsForTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three parts of 16 chunks are on their way: none is whole when the store dies.
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 2**16)
    path = large(tmp_path, "killed")
    told: list[int] = []

    def kill_once(_: str, count: int) -> None:
        told.append(count)
        if len(told) == 20:
            s3.control.kill()
            s3.control.start()

    answer = await client.datasets.upload(path, name="killed", progress=kill_once)

    assert answer.dataset.row_count == LARGE_ROWS
    assert min(told) < 0
    assert sum(told) == path.stat().st_size


async def test_a_download_survives_the_death_of_the_object_store(
    gateway: OneService, client: AsyncClient, s3: ObjectsForTests, tmp_path: Path
) -> None:
    path = large(tmp_path, "broken")
    await client.datasets.upload(path, name="broken")
    links, told = await links_of(gateway, "broken"), list[int]()

    def kill_once(_: str, count: int) -> None:
        told.append(count)
        if len(told) == 2:
            s3.control.kill()
            s3.control.start()

    await transfer.download(links, tmp_path / "got", progress=kill_once)

    assert (tmp_path / "got" / path.name).read_bytes() == path.read_bytes()
    # It goes on where it was: nothing is taken back.
    assert min(told) > 0
    assert sum(told) == path.stat().st_size


async def test_a_download_that_was_altered_is_refused_and_leaves_nothing(
    gateway: OneService, client: AsyncClient, s3: ObjectsForTests, tmp_path: Path
) -> None:
    answer = await client.datasets.upload(write(tmp_path, chat("q", "a")), name="altered")
    links = await links_of(gateway, "altered")
    store = ObjectStore(s3.endpoint, s3.access_key, s3.secret_key, s3.bucket, s3.region)
    key = f"datasets/default/{answer.dataset.dataset_id}/files/{links[0].name}"
    await store.put_bytes(key, b"x" * links[0].size_bytes)

    with pytest.raises(FileCorrupt, match="SHA-256"):
        await transfer.download(links, tmp_path / "got")

    assert list((tmp_path / "got").iterdir()) == []


async def test_a_download_never_replaces_a_good_file_by_a_bad_one(
    gateway: OneService, client: AsyncClient, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("keep", "a"))
    await client.datasets.upload(path, name="keep")
    [link] = await links_of(gateway, "keep")
    link.sha256 = "0" * 64

    with pytest.raises(FileCorrupt):
        await transfer.download([link], tmp_path)

    assert "keep" in path.read_text()


@pytest.mark.parametrize("name", ["../evil.jsonl", "/evil.jsonl", "..", "", "a/b"])
async def test_a_file_name_that_is_a_path_is_refused_before_anything_is_fetched(
    tmp_path: Path, name: str
) -> None:
    good = FileLink(name="good", url="http://127.0.0.1:1/")

    with pytest.raises(FileCorrupt, match="no file name"):
        await transfer.download([good, FileLink(name=name)], tmp_path / "got")

    assert not (tmp_path / "got").exists()


async def test_an_address_that_is_not_signed_right_is_told_at_once(
    gateway: OneService, client: AsyncClient, tmp_path: Path
) -> None:
    await client.datasets.upload(write(tmp_path, chat("signed", "a")), name="signed")
    [link] = await links_of(gateway, "signed")
    address, _, signature = link.url.partition("X-Amz-Signature=")
    link.url = f"{address}X-Amz-Signature={signature[::-1]}"

    with pytest.raises(TransferFailed, match="answered 403") as failure:
        await transfer.download([link], tmp_path / "got")

    assert "Signature" not in str(failure.value)
    assert list((tmp_path / "got").iterdir()) == []


async def test_a_store_that_stays_away_is_told_without_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The waits between six tries take half a minute.
    monkeypatch.setattr(transfer, "TRIES", 2)
    link = FileLink(name="a.jsonl", url="http://127.0.0.1:1/secret", size_bytes=1)
    part = PartLink(url=link.url, size_bytes=1)
    path = tmp_path / "a.jsonl"
    path.write_text("x")
    missing = [UploadFile(file=link, missing_parts=[part])]

    with pytest.raises(TransferFailed, match="does not answer") as up:
        await transfer.upload_parts({path.name: path}, missing, transfer.Account(None))
    with pytest.raises(TransferFailed, match="does not answer") as down:
        await transfer.download([link], tmp_path / "got")

    assert "secret" not in f"{up.value}{down.value}"
    assert up.value.retryable
    assert list((tmp_path / "got").iterdir()) == []


async def test_hidden_files_are_no_part_of_a_model(
    client: AsyncClient, toy_model: Path, tmp_path: Path
) -> None:
    for path in toy_model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / ".gitattributes").write_text("*.safetensors filter=lfs\n")

    found = await client.models.add(tmp_path, name="hidden", license="MIT")

    assert ".gitattributes" not in [file.name for file in found.files]


async def test_an_empty_folder_is_no_model(client: AsyncClient, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="holds no files"):
        await client.models.add(tmp_path, name="nothing", license="MIT")


async def test_an_address_for_uploads_takes_its_own_object_only(
    gateway: OneService, client: AsyncClient, tmp_path: Path
) -> None:
    await client.datasets.upload(write(tmp_path, chat("mine", "a")), name="mine")
    [link] = await links_of(gateway, "mine")

    answer = httpx.put(link.url, content=b"other bytes", trust_env=False)

    assert answer.status_code == 403
