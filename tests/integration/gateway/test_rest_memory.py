"""A file of several parts of full size passes through gateway and catalog in bounded memory."""

import hashlib
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psutil
import pytest

from lehr.objects import ObjectStore
from tests.integration.gateway.uploading import DATASETS, address_of
from tests.support.one_service import OneService
from tests.support.servers import NatsForTests, ObjectsForTests
from tests.support.stack import DatabaseForTests

FILE_BYTES = 300 * 10**6
BLOCK_BYTES = 10**6
PART_BYTES = 64 * 2**20
GATEWAY_MAX = 40 * 2**20
CATALOG_MAX = 120 * 2**20
"""What gRPC buffers and what is uploaded at a time; of a part that is held there are copies."""


@pytest.fixture(scope="module")
def catalog_variables(
    database: DatabaseForTests, nats_server: NatsForTests, s3: ObjectsForTests
) -> dict[str, str]:
    """A catalog with parts of full size."""
    return {
        "CATALOG_DATABASE_URL": database.url("catalog"),
        **nats_server.variables,
        **s3.variables,
    }


class Peak:
    """The most memory that a process had while the block lasted, above what it had before."""

    def __init__(self, service: OneService) -> None:
        self._process = psutil.Process(service.control.pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._before = self._most = self._process.memory_info().rss

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.01):
            self._most = max(self._most, self._process.memory_info().rss)

    @property
    def growth(self) -> int:
        """Bytes."""
        return self._most - self._before


def block(number: int) -> bytes:
    """Return a piece of the file, unlike the others."""
    return hashlib.sha256(str(number).encode()).digest() * (BLOCK_BYTES // 32)


def content(offset: int, size: int) -> bytes:
    """Return a stretch of the file."""
    first, last = offset // BLOCK_BYTES, (offset + size) // BLOCK_BYTES
    joined = b"".join(block(number) for number in range(first, last + 1))
    return joined[offset - first * BLOCK_BYTES :][:size]


async def body(part: dict[str, Any]) -> AsyncIterator[bytes]:
    """Yield a part bit by bit."""
    for at in range(0, part["size_bytes"], BLOCK_BYTES):
        left = part["size_bytes"] - at
        yield content(part["offset_bytes"] + at, min(BLOCK_BYTES, left))


async def test_300_megabytes_pass_in_memory_that_does_not_grow_with_them(
    gateway: OneService, catalog: OneService, rest: httpx.AsyncClient, store: ObjectStore
) -> None:
    digest = hashlib.sha256()
    for number in range(FILE_BYTES // BLOCK_BYTES):
        digest.update(block(number))
    file = {"name": "big.jsonl", "size_bytes": FILE_BYTES, "sha256": digest.hexdigest()}
    wanted = {"name": "big", "files": [file]}
    upload = (await rest.post(DATASETS, json=wanted)).json()
    parts = upload["files"][0]["missing_parts"]

    began = time.monotonic()
    with Peak(gateway) as of_gateway, Peak(catalog) as of_catalog:
        for part in parts:
            address = address_of(upload, file["name"], part["number"])
            assert (await rest.put(address, content=body(part))).status_code == 200
    seconds = time.monotonic() - began

    print(f"{FILE_BYTES / seconds / 10**6:.0f} MB/s,", of_gateway.growth, of_catalog.growth)
    stored = await store.list(f"uploads/default/{upload['id']}/")
    assert [part["size_bytes"] for part in parts[:-1]] == [PART_BYTES] * 4
    assert sorted(one.size_bytes for one in stored) == sorted(part["size_bytes"] for part in parts)
    assert not (await rest.post(DATASETS, json=wanted)).json()["files"]
    assert of_gateway.growth < GATEWAY_MAX
    assert of_catalog.growth < CATALOG_MAX
