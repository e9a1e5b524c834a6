"""The object store against a real S3 server."""

import asyncio
import hashlib
import os
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from lehr.errors import NotFound, Unavailable
from lehr.objects import Digest, ObjectDiffers, ObjectNotFound, ObjectStore
from tests.integration.lehr.lib_servers import ObjectServer

MINUTE = timedelta(minutes=1)


async def test_bytes_are_read_back(objects: ObjectStore) -> None:
    await objects.put_bytes("datasets/t1/rows \u00e9.jsonl", b"{}\n")

    assert await objects.get_bytes("datasets/t1/rows \u00e9.jsonl") == b"{}\n"
    assert await objects.stat("datasets/t1/rows \u00e9.jsonl") == 3


async def test_an_empty_object_is_an_object(objects: ObjectStore) -> None:
    await objects.put_bytes("datasets/t1/empty", b"")

    assert await objects.stat("datasets/t1/empty") == 0
    assert await objects.get_bytes("datasets/t1/empty") == b""


@pytest.mark.parametrize(
    ("offset", "length", "part"), [(0, 3, b"012"), (7, None, b"789"), (8, 9, b"89"), (3, 0, b"")]
)
async def test_a_part_is_read(
    objects: ObjectStore, offset: int, length: int | None, part: bytes
) -> None:
    await objects.put_bytes("datasets/t1/digits", b"0123456789")

    assert await objects.get_bytes("datasets/t1/digits", offset=offset, length=length) == part


async def test_a_file_in_several_parts_comes_back_whole_with_its_digest(
    objects: ObjectStore, tmp_path: Path
) -> None:
    content = os.urandom(40 << 20)
    proof = Digest(hashlib.sha256(content).hexdigest(), len(content))
    (tmp_path / "up").write_bytes(content)

    await objects.put_file("models/t1/weights", tmp_path / "up")
    received = await objects.get_file("models/t1/weights", tmp_path / "down")

    assert received == await objects.sha256("models/t1/weights") == proof
    assert (tmp_path / "down").read_bytes() == content


def proof(content: bytes) -> Digest:
    """Return what was read of some bytes."""
    return Digest(hashlib.sha256(content).hexdigest(), len(content))


@pytest.mark.parametrize("sizes", [[3], [1 << 20, 5], [3, 1 << 20, 1], [20 << 20, 1 << 20, 7]])
async def test_objects_are_joined_to_one_and_to_a_file(
    objects: ObjectStore, tmp_path: Path, sizes: list[int]
) -> None:
    pieces = [os.urandom(size) for size in sizes]
    keys = [f"uploads/t1/joined/{at}" for at in range(len(pieces))]
    for key, piece in zip(keys, pieces, strict=True):
        await objects.put_bytes(key, piece)
    whole, told = b"".join(pieces), list[int]()

    await objects.put_joined(
        "datasets/t1/joined",
        keys,
        expected=proof(whole),
        copy_to=tmp_path / "copy",
        progress=told.append,
    )

    assert await objects.sha256("datasets/t1/joined") == proof(whole)
    assert (tmp_path / "copy").read_bytes() == whole
    assert sum(told) == len(whole)


@pytest.mark.parametrize("size", [1000, 20 << 20])
@pytest.mark.parametrize("wrong", ["digest", "longer", "shorter", "gone"])
async def test_what_is_not_expected_never_appears(
    objects: ObjectStore, size: int, wrong: str
) -> None:
    content = os.urandom(size)
    stored = {"longer": content + b"x", "shorter": content[:-1], "digest": content[::-1]}
    await objects.put_bytes("uploads/t1/odd/0", stored.get(wrong, content))
    keys = ["uploads/t1/odd/0", *(["uploads/t1/odd/never"] if wrong == "gone" else [])]
    await objects.put_bytes("datasets/t1/odd", b"before")

    with pytest.raises(ObjectNotFound if wrong == "gone" else ObjectDiffers):
        await objects.put_joined("datasets/t1/odd", keys, expected=proof(content))

    assert await objects.get_bytes("datasets/t1/odd") == b"before"


async def test_joining_ends_with_what_its_listener_raises(objects: ObjectStore) -> None:
    content = os.urandom(20 << 20)
    await objects.put_bytes("uploads/t1/ended/0", content)

    def refuse(_: int) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await objects.put_joined(
            "datasets/t1/ended", ["uploads/t1/ended/0"], expected=proof(content), progress=refuse
        )

    assert await objects.stat("datasets/t1/ended") is None


async def test_a_stream_is_the_object_in_chunks(objects: ObjectStore) -> None:
    content = os.urandom(5 << 19)
    await objects.put_bytes("models/t1/stream", content)

    chunks = [chunk async for chunk in objects.stream("models/t1/stream")]

    assert b"".join(chunks) == content
    assert len(chunks) == 3


async def test_a_stream_may_be_left_early(objects: ObjectStore) -> None:
    await objects.put_bytes("models/t1/left", os.urandom(5 << 19))
    stream = objects.stream("models/t1/left")

    first = await anext(stream)
    await stream.aclose()

    assert len(first) == 1 << 20


async def test_what_is_not_there_is_told_apart_from_an_outage(
    objects: ObjectStore, tmp_path: Path
) -> None:
    assert await objects.stat("models/t1/nothing") is None
    with pytest.raises(NotFound):
        await objects.get_bytes("models/t1/nothing")
    with pytest.raises(NotFound):
        await objects.sha256("models/t1/nothing")
    with pytest.raises(NotFound):
        await objects.get_file("models/t1/nothing", tmp_path / "down")
    with pytest.raises(NotFound):
        await anext(objects.stream("models/t1/nothing"))
    assert os.listdir(tmp_path) == []


async def test_a_missing_local_file_is_our_mistake_and_no_outage(
    objects: ObjectStore, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        await objects.put_file("models/t1/x", tmp_path / "nothing")


async def test_a_listing_has_keys_and_sizes_below_a_prefix(objects: ObjectStore) -> None:
    await objects.put_bytes("checkpoints/t1/job_a/c1/model", b"123")
    await objects.put_bytes("checkpoints/t1/job_a/c2/model", b"12345")
    await objects.put_bytes("checkpoints/t1/job_b/c1/model", b"1")

    found = await objects.list("checkpoints/t1/job_a/")

    assert [(each.key, each.size_bytes) for each in found] == [
        ("checkpoints/t1/job_a/c1/model", 3),
        ("checkpoints/t1/job_a/c2/model", 5),
    ]
    assert all(each.modify_time.tzinfo for each in found)


async def test_an_empty_listing_is_empty(objects: ObjectStore) -> None:
    assert await objects.list("checkpoints/nobody/") == ()


async def test_deleting_is_repeatable(objects: ObjectStore) -> None:
    await objects.put_bytes("datasets/t1/old", b"x")
    await objects.delete(["datasets/t1/old", "datasets/t1/never"])
    await objects.delete(["datasets/t1/old"])
    await objects.delete([])

    assert await objects.stat("datasets/t1/old") is None


async def test_presigned_urls_move_bytes_without_keys(objects: ObjectStore) -> None:
    async with httpx.AsyncClient() as client:
        put = await client.put(objects.presign_put("datasets/t1/signed", MINUTE), content=b"abc")
        get = await client.get(
            objects.presign_get("datasets/t1/signed", MINUTE, filename="r\u00e9sum\u00e9 1.jsonl")
        )

    assert (put.status_code, get.status_code, get.content) == (200, 200, b"abc")


async def test_a_presigned_url_is_good_for_one_key(objects: ObjectStore) -> None:
    url = objects.presign_put("datasets/t1/mine", MINUTE).replace("mine", "other")

    async with httpx.AsyncClient() as client:
        answer = await client.put(url, content=b"abc")

    assert answer.status_code == 403


async def test_the_bucket_is_made_once_by_several_at_once(object_server: ObjectServer) -> None:
    stores = [object_server.store("made-once") for _ in range(4)]

    await asyncio.gather(*(store.ensure_bucket() for store in stores))
    await stores[0].put_bytes("a", b"1")

    assert await stores[1].get_bytes("a") == b"1"


async def test_a_wrong_secret_is_unavailable_and_is_not_told(object_server: ObjectServer) -> None:
    store = object_server.store(secret_key="canary-secret")

    with pytest.raises(Unavailable) as caught:
        await store.put_bytes("a", b"1")

    assert "canary" not in str(caught.value) + str(caught.value.facts)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    store = ObjectStore("http://127.0.0.1:9", "key", "secret", "lehr")

    with pytest.raises(Unavailable) as caught:
        await store.get_bytes("a")

    assert (caught.value.reason, caught.value.retryable) == ("OBJECT_STORE_UNAVAILABLE", True)
