"""Uploads that are interrupted: what has arrived is not sent again."""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.client import AsyncClient, transfer
from lehr.client.transfer import FileChanged, TransferFailed
from lehr.errors import InvalidArgument
from lehr.faults import plan as plans
from lehr.objects import ObjectStore
from lehr.stack.ports import LOOPBACK
from services.catalog.domain.parts import PART_BYTES as PART_BYTES_DEFAULT
from tests.integration.catalog.conftest import PART_BYTES
from tests.integration.catalog.test_datasets import chat, write
from tests.support.doors import FIRST_KEY, a_client, a_gateway
from tests.support.one_service import OneService, a_service
from tests.support.servers import NatsForTests, ObjectsForTests
from tests.support.stack import DatabaseForTests

UPLOAD = """
import sys, time
from pathlib import Path
from lehr.client import Client

def slowly(name, count):
    print(count, flush=True)
    time.sleep(0.1)

with Client(sys.argv[1], sys.argv[2]) as client:
    client.datasets.upload(Path(sys.argv[3]), name=sys.argv[4], progress=slowly)
"""

WITHIN_SECONDS = 60.0
LARGE_BYTES = 448 * 2**20


def large(folder: Path, mark: str, *, rows: int = 40) -> Path:
    """Return a dataset of some twelve parts."""
    return write(folder, *(chat(f"{mark} {number}", "x" * 300_000) for number in range(rows)))


async def parts_of(store: ObjectStore) -> dict[str, tuple[int, datetime]]:
    """Return size and time of every part that has arrived."""
    found = await store.list("uploads/default/")
    return {one.key: (one.size_bytes, one.modify_time) for one in found}


async def test_a_killed_upload_goes_on_and_sends_only_what_is_missing(
    catalog: OneService,
    gateway: OneService,
    client: AsyncClient,
    store: ObjectStore,
    tmp_path: Path,
) -> None:
    path = large(tmp_path, "resumed")
    address = f"{LOOPBACK}:{gateway.port}"
    argv = [sys.executable, "-c", UPLOAD, address, FIRST_KEY, str(path), "resumed"]
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdout=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    deadline = time.monotonic() + WITHIN_SECONDS
    while len(await parts_of(store)) < 4:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    process.kill()
    await process.wait()
    before = await parts_of(store)
    # The parts are looked at before they are put together.
    plans.arm(catalog.faults, "catalog.validate.claimed", action="hang")
    told: list[int] = []

    uploading = asyncio.create_task(
        client.datasets.upload(path, name="resumed", progress=lambda _, count: told.append(count))
    )
    while not plans.fired(catalog.faults, "catalog.validate.claimed"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    after = await parts_of(store)
    plans.disarm(catalog.faults)
    answer = await uploading

    arrived = sum(size for size, _ in before.values())
    sent = sum(size for key, (size, _) in after.items() if after[key] != before.get(key))
    assert 0 < arrived < path.stat().st_size
    assert sent == path.stat().st_size - arrived
    assert told[0] == arrived
    assert sum(told) == path.stat().st_size
    assert answer.dataset.row_count == 40


async def test_an_upload_through_the_gateway_gives_the_same_dataset(
    client: AsyncClient, tmp_path: Path
) -> None:
    path, told = large(tmp_path, "gateway"), Counter[str]()

    streamed = await client.datasets.upload(
        path,
        name="gateway",
        through_gateway=True,
        progress=lambda name, count: told.update({name: count}),
    )
    await client.datasets.download("gateway", tmp_path / "got")
    direct = await client.datasets.upload(path, name="direct")

    assert told == {path.name: path.stat().st_size}
    assert (tmp_path / "got" / path.name).read_bytes() == path.read_bytes()
    assert streamed.dataset.revision == direct.dataset.revision
    assert streamed.dataset.row_count == direct.dataset.row_count == 40


async def test_a_model_can_be_sent_through_the_gateway(
    client: AsyncClient, toy_model: Path
) -> None:
    found = await client.models.add(toy_model, name="streamed", license="MIT", through_gateway=True)

    assert found.state == pb.ENTRY_STATE_READY


async def test_an_upload_goes_on_where_the_object_store_gave_up(
    client: AsyncClient,
    s3: ObjectsForTests,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfer, "TRIES", 1)
    path = large(tmp_path, "outage")
    told: list[int] = []

    def kill_in_the_middle(_: str, count: int) -> None:
        told.append(count)
        if sum(told) > 5 * PART_BYTES:
            s3.control.kill()

    try:
        with pytest.raises(TransferFailed):
            await client.datasets.upload(path, name="outage", progress=kill_in_the_middle)
    finally:
        s3.control.start()
    again: list[int] = []
    answer = await client.datasets.upload(
        path, name="outage", progress=lambda _, count: again.append(count)
    )

    assert answer.is_accepted
    assert again[0] >= PART_BYTES
    assert sum(again) == path.stat().st_size


async def test_addresses_that_expire_on_the_way_are_asked_for_anew(
    catalog_variables: dict[str, str],
    database: DatabaseForTests,
    nats_server: NatsForTests,
    tmp_path: Path,
) -> None:
    path = large(tmp_path, "expired")
    hasty = {**catalog_variables, "CATALOG_LINK_LIFETIME": "PT2S"}
    began = time.monotonic()

    with (
        a_service("catalog", hasty) as catalog,
        a_gateway(database, nats_server, {"catalog": catalog}) as gateway,
    ):
        async with a_client(gateway) as client:
            answer = await client.datasets.upload(
                path, name="expired", progress=lambda *_: time.sleep(0.5)
            )

    assert answer.is_accepted
    assert time.monotonic() - began > 4


async def test_a_file_that_shrinks_while_it_is_sent_is_told(
    client: AsyncClient, tmp_path: Path
) -> None:
    path = large(tmp_path, "shrunk")

    def shrink(_: str, count: int) -> None:
        if count:
            os.truncate(path, PART_BYTES)

    for through_gateway in (False, True):
        large(tmp_path, "shrunk")
        with pytest.raises(FileChanged):
            await client.datasets.upload(
                path, name="shrunk", progress=shrink, through_gateway=through_gateway
            )


async def test_several_files_and_a_folder_are_one_dataset_each(
    client: AsyncClient, tmp_path: Path
) -> None:
    folder = tmp_path / "my folder"
    folder.mkdir()
    rows = {"b.jsonl": [chat("b", "1")], "a.csv": None}
    for name, content in rows.items():
        text = "prompt,completion\nq,a\n" if content is None else json.dumps(content[0])
        (folder / name).write_text(text)
    (folder / ".hidden").write_text("no data")
    (folder / "c.jsonl").write_text(json.dumps(chat("c", "2")))

    several = await client.datasets.upload([folder / "c.jsonl", folder / "b.jsonl"], name="several")
    (folder / "a.csv").unlink()
    packed = await client.datasets.upload(folder, name="packed")
    os.utime(folder / "b.jsonl", (0, 0))
    again = await client.datasets.upload(folder, name="packed")

    assert [one.name for one in several.dataset.files] == ["b.jsonl", "c.jsonl"]
    assert several.dataset.row_count == packed.dataset.row_count == 2
    assert [one.name for one in packed.dataset.files] == ["my-folder.zip"]
    assert again.dataset == packed.dataset


async def test_what_cannot_be_one_dataset_is_refused_before_anything_is_sent(
    client: AsyncClient, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    path = write(tmp_path, chat("q", "a"))
    (tmp_path / "other").mkdir()
    twin = write(tmp_path / "other", chat("r", "b"))

    for given, words in (
        ([], "at least one"),
        ([path, tmp_path / "empty"], "or one folder"),
        (tmp_path / "empty", "holds no files"),
        ([path, twin], "same name"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            await client.datasets.upload(given, name="nothing")  # type: ignore[arg-type]


async def test_how_far_a_check_is_is_told(
    catalog: OneService, client: AsyncClient, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("watched", "a"))
    plans.arm(catalog.faults, "catalog.validate.assembled", action="delay", seconds=8)
    seen: list[pb.Dataset] = []

    await client.datasets.upload(path, name="watched", checking=seen.append)
    plans.disarm(catalog.faults)

    checked = [one for one in seen if one.state == pb.ENTRY_STATE_VALIDATING]
    assert checked[-1].progress.done_bytes == path.stat().st_size


def peak_bytes(service: OneService) -> int:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{service.control.pid}/status").read_text()
    [kilobytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(kilobytes) * 1024


async def test_large_parts_through_the_gateway_take_little_memory(
    catalog_variables: dict[str, str],
    database: DatabaseForTests,
    nats_server: NatsForTests,
    tmp_path: Path,
) -> None:
    # Refused at the end, in words: only its way there counts.
    path = tmp_path / "large.zip"
    with path.open("wb") as file:
        for _ in range(LARGE_BYTES // 2**20):
            file.write(os.urandom(2**20))
    variables = {**catalog_variables, "CATALOG_PART_BYTES": str(PART_BYTES_DEFAULT)}

    with (
        a_service("catalog", variables) as catalog,
        a_gateway(database, nats_server, {"catalog": catalog}) as gateway,
    ):
        before = [peak_bytes(one) for one in (catalog, gateway)]
        async with a_client(gateway) as client:
            answer = await client.datasets.upload(path, name="large", through_gateway=True)
        after = [peak_bytes(one) for one in (catalog, gateway)]

    assert not answer.is_accepted
    grown = [peak - base for peak, base in zip(after, before, strict=True)]
    print(grown)
    assert max(grown) < LARGE_BYTES // 2
