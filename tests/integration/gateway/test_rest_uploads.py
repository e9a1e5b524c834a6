"""Uploads by plain HTTP: in parts, interrupted, resumed, and back unchanged."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from lehr.client import AsyncClient
from lehr.objects import ObjectStore
from tests.integration.catalog.test_datasets import chat, write
from tests.integration.gateway.uploading import (
    DATASETS,
    MODELS,
    address_of,
    announced,
    begun,
    in_pieces,
    refusal,
    sent,
    settled,
)
from tests.support.doors import a_rest_client
from tests.support.one_service import OneService

UNKNOWN_ID = "ds_" + "0" * 26


def write_large(folder: Path, tag: str) -> Path:
    """Write rows of three and a half parts."""
    return write(folder, *(chat(f"{tag} {number}", "a" * 4000) for number in range(900)))


async def test_an_interrupted_upload_goes_on_and_its_bytes_come_back_unchanged(
    rest: httpx.AsyncClient, tmp_path: Path
) -> None:
    path = write_large(tmp_path, "interrupted")

    async def half() -> AsyncIterator[bytes]:
        async for piece in in_pieces(path.read_bytes()[2**20 : 2**20 + 2**19]):
            yield piece
        raise ConnectionError

    first = await begun(rest, "interrupted", path)
    await sent(rest, first, path, only=[0])
    with pytest.raises(ConnectionError):
        await rest.put(
            address_of(first, path.name, 1), content=half(), headers={"content-length": "1048576"}
        )
    second = await begun(rest, "interrupted", path)
    await sent(rest, second, path)
    third = await begun(rest, "interrupted", path)
    found = await settled(rest, first["id"])
    whole = await rest.get(f"{DATASETS}/interrupted/content", follow_redirects=True)
    by_name = await rest.get(
        f"{DATASETS}/{first['id']}/files/{path.name}/content", follow_redirects=True
    )

    assert [part["number"] for part in first["files"][0]["missing_parts"]] == [0, 1, 2, 3]
    assert [part["number"] for part in second["files"][0]["missing_parts"]] == [1, 2, 3]
    assert (third["id"], third["files"], third["is_committed"]) == (first["id"], [], False)
    assert (found["state"], found["row_count"], found["problems"]) == ("READY", 900, [])
    assert whole.content == by_name.content == path.read_bytes()
    assert (await begun(rest, "interrupted", path))["is_committed"]


async def test_what_is_wrong_with_rows_is_told_by_line(
    rest: httpx.AsyncClient, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("wrong", "a"), "no json")

    upload = await begun(rest, "wrong-rows", path)
    await sent(rest, upload, path)
    found = await settled(rest, upload["id"])
    looked = await rest.get(f"{DATASETS}/{upload['id']}")

    assert found["state"] == "REFUSED"
    assert [(one["reason"], one["lines"]) for one in found["problems"]] == [("ROW_INVALID", [2])]
    assert looked.json() == found
    assert refusal(await rest.get(f"{DATASETS}/{upload['id']}/content"), 404)


async def test_a_part_of_another_size_is_refused_and_not_stored(
    rest: httpx.AsyncClient, store: ObjectStore, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("sizes", "a" * 100_000))
    upload = await begun(rest, "sizes", path)
    content = path.read_bytes()
    address = address_of(upload, path.name, 0)

    for body in (content[:-1], content + b"x", b"", b"x" * 2**23):
        for sending in (body, in_pieces(body, 1 + len(body) // 3)):
            error = refusal(await rest.put(address, content=sending), 400)
            assert (error["reason"], error["param"]) == ("UPLOAD_REFUSED", "chunk")
            assert f"has {len(content)} bytes" in error["message"]

    assert await store.list(f"uploads/default/{upload['id']}/") == ()
    assert (await rest.put(address, content=content)).json()["size_bytes"] == len(content)


async def test_a_part_that_nobody_awaits_is_refused(
    rest: httpx.AsyncClient, toy_model: Path, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("awaited", "a"))
    upload = await begun(rest, "awaited", path)
    content = path.read_bytes()

    no_part = await rest.put(address_of(upload, path.name, 7), content=content)
    no_file = await rest.put(address_of(upload, "other.jsonl", 0), content=content)
    no_entry = await rest.put(address_of({"id": UNKNOWN_ID}, path.name, 0), content=content)
    no_model = await rest.put(address_of(upload, path.name, 0, at=MODELS), content=content)
    await sent(rest, upload, path)
    await settled(rest, upload["id"])
    closed = await rest.put(address_of(upload, path.name, 0), content=content)

    assert "no such part" in refusal(no_part, 400)["message"]
    assert "not announced" in refusal(no_file, 400)["message"]
    assert refusal(no_entry, 404)["code"] == "dataset_not_found"
    assert refusal(no_model, 400)["param"] == "model_id"
    assert refusal(closed, 400)["reason"] == "UPLOAD_CLOSED"
    assert closed.headers["x-should-retry"] == "false"


async def test_a_large_body_that_is_refused_at_once_is_answered_and_the_connection_lives(
    rest: httpx.AsyncClient,
) -> None:
    for _ in range(20):
        answer = await rest.put(
            address_of({"id": UNKNOWN_ID}, "train.jsonl", 0), content=in_pieces(b"x" * 2**24)
        )
        assert refusal(answer, 404)["reason"] == "DATASET_NOT_FOUND"


async def test_a_commit_before_all_has_arrived_names_the_file(
    rest: httpx.AsyncClient, tmp_path: Path
) -> None:
    path = write_large(tmp_path, "early")
    upload = await begun(rest, "early", path)
    await sent(rest, upload, path, only=[0, 1])

    error = refusal(await rest.post(f"{DATASETS}/{upload['id']}/commit"), 400)

    assert (error["reason"], error["facts"]) == ("UPLOAD_INCOMPLETE", {"file": path.name})


async def test_pages_hold_every_dataset_once_and_deleted_ones_no_more(
    rest: httpx.AsyncClient, tmp_path: Path
) -> None:
    ids = {}
    for name in ("paged-a", "paged-b", "paged-c"):
        path = write(tmp_path, chat(name, "a"))
        upload = await begun(rest, name, path, license="MIT", origin="a test")
        await sent(rest, upload, path)
        ids[name] = (await settled(rest, upload["id"]))["id"]

    assert await names_of_pages(rest) == ["paged-a", "paged-b", "paged-c"]
    gone = await rest.delete(f"{DATASETS}/{ids['paged-b']}")
    again = await rest.delete(f"{DATASETS}/{ids['paged-b']}")

    expected = {"id": ids["paged-b"], "object": "lehr.dataset", "deleted": True}
    assert gone.json() == again.json() == expected
    assert await names_of_pages(rest) == ["paged-a", "paged-c"]


async def names_of_pages(rest: httpx.AsyncClient) -> list[str]:
    """Return the names on all pages of one dataset each."""
    found, after = [], ""
    while len(found) < 10:
        listing = {"limit": 1, "name_contains": "paged-", "after": after}
        page = (await rest.get(DATASETS, params=listing)).json()
        assert page["object"] == "list"
        found += [(one["name"], one["license"], one["source"]["origin"]) for one in page["data"]]
        if not page["has_more"]:
            break
        after = page["next"]
    assert {told[1:] for told in found} == {("MIT", "a test")}
    return [name for name, *_ in found]


async def test_a_dataset_of_two_files_is_downloaded_file_by_file(
    rest: httpx.AsyncClient, tmp_path: Path
) -> None:
    paths = [write(tmp_path, chat("one", "a")).rename(tmp_path / "one.jsonl")]
    paths.append(write(tmp_path, chat("two", "b")).rename(tmp_path / "two.jsonl"))
    upload = await begun(rest, "two-files", *paths)
    await sent(rest, upload, *paths)
    await settled(rest, upload["id"])

    both = await rest.get(f"{DATASETS}/two-files/content")
    second = await rest.get(f"{DATASETS}/two-files/files/two.jsonl/content", follow_redirects=True)
    third = await rest.get(f"{DATASETS}/two-files/files/three.jsonl/content")

    assert refusal(both, 400)["facts"] == {"file_count": "2"}
    assert second.content == paths[1].read_bytes()
    assert refusal(third, 404)["reason"] == "FILE_NOT_FOUND"


async def test_a_model_comes_the_same_way(
    rest: httpx.AsyncClient, client: AsyncClient, toy_model: Path
) -> None:
    paths = sorted(path for path in toy_model.iterdir() if path.is_file())
    unanswered = await rest.post(MODELS, json={"name": "by-rest", "files": announced(*paths)})

    upload = await begun(rest, "by-rest", *paths, at=MODELS, license="Apache-2.0")
    await sent(rest, upload, *paths, at=MODELS)
    found = await settled(rest, upload["id"], at=MODELS)
    listed = (await rest.get(MODELS, params={"name_contains": "by-rest"})).json()
    config = await rest.get(f"{MODELS}/by-rest/files/config.json/content", follow_redirects=True)

    assert refusal(unanswered, 400)["reason"] == "LICENSE_NOT_ACKNOWLEDGED"
    assert (found["state"], found["object"], found["refusal"]) == ("READY", "lehr.model", "")
    assert found["parameter_count"] == sum(found["facts"]["parameter_counts"].values()) > 0
    assert listed["data"] == [found]
    assert json.loads(config.content) == json.loads((toy_model / "config.json").read_bytes())
    assert (await client.models.get("by-rest")).model_id == found["id"]
    assert (await rest.delete(f"{MODELS}/{found['id']}")).json()["deleted"]
    assert refusal(await rest.get(f"{MODELS}/by-rest"), 404)["reason"] == "MODEL_NOT_FOUND"


async def test_an_upload_ends_with_the_key_that_it_is_made_with(
    gateway: OneService, client: AsyncClient, tmp_path: Path
) -> None:
    path = write_large(tmp_path, "revoked")
    made = await client.keys.create("uploader")

    async def slowly() -> AsyncIterator[bytes]:
        yield b"x"
        await client.keys.revoke(made.key.key_id)
        for _ in range(60):
            yield b"x"
            await asyncio.sleep(0.05)

    async with a_rest_client(gateway.rest, made.secret) as holder:
        upload = await begun(holder, "revoked", path)
        answer = await holder.put(address_of(upload, path.name, 0), content=slowly())

    assert refusal(answer, 401)["code"] == "invalid_api_key"
