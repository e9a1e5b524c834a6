"""HTTP under strain: callers that stall, callers that are many, services that are away, an end."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lehr.stack.ports import LOOPBACK
from tests.integration.catalog.test_datasets import chat, write
from tests.integration.gateway.uploading import DATASETS, address_of, begun, refusal
from tests.support.doors import FIRST_KEY, a_gateway
from tests.support.one_service import OneService
from tests.support.servers import NatsForTests
from tests.support.stack import DatabaseForTests

CALLS_MAX = 3
IDLE_SECONDS = 2.0


@pytest.fixture(scope="module")
def gateway(
    database: DatabaseForTests, nats_server: NatsForTests, catalog: OneService
) -> Iterator[OneService]:
    """A gateway with little patience and few calls a key."""
    variables = {
        "GATEWAY_CALLS_PER_KEY": str(CALLS_MAX),
        "GATEWAY_BODY_IDLE_SECONDS": str(IDLE_SECONDS),
    }
    with a_gateway(database, nats_server, {"catalog": catalog}, **variables) as running:
        yield running


class Stalled:
    """A connection on which a test says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def at(cls, gateway: OneService, said: str) -> "Stalled":
        """Connect and say something."""
        reader, writer = await asyncio.open_connection(LOOPBACK, gateway.rest_port)
        writer.write(said.encode())
        return cls(reader, writer)

    async def trickle(self) -> None:
        """Say a byte now and then, so that the body is not idle."""
        with contextlib.suppress(OSError):
            while True:
                self._writer.write(b"x")
                await self._writer.drain()
                await asyncio.sleep(IDLE_SECONDS / 8)

    async def heard(self) -> str:
        """Return all that is answered until the connection is closed."""
        async with asyncio.timeout(90):
            told = (await self._reader.read()).decode()
        self._writer.close()
        return told


def put(address: str, length: int, body: str) -> str:
    """Return a request that announces more than it brings."""
    return (
        f"PUT {address} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {FIRST_KEY}\r\n"
        f"content-length: {length}\r\n\r\n{body}"
    )


@pytest.fixture
async def upload(rest: httpx.AsyncClient, tmp_path: Path) -> dict[str, Any]:
    """An upload of one part."""
    return await begun(rest, "patience", write(tmp_path, chat("patience", "a" * 1000)))


async def test_a_body_that_stalls_is_given_up_and_its_connection_closed(
    gateway: OneService, rest: httpx.AsyncClient, upload: dict[str, Any]
) -> None:
    size = upload["files"][0]["size_bytes"]
    began = time.monotonic()
    stalled = await Stalled.at(gateway, put(address_of(upload, "train.jsonl", 0), size, "x" * 9))

    told = await stalled.heard()

    assert told.startswith("HTTP/1.1 408 ")
    assert '"BODY_TIMED_OUT"' in told
    assert '{"received_bytes": "9"}' in told
    assert time.monotonic() - began >= IDLE_SECONDS
    assert (await rest.get(DATASETS)).status_code == 200


async def test_a_connection_without_a_request_is_closed(gateway: OneService) -> None:
    silent = await Stalled.at(gateway, "")
    trickling = await Stalled.at(gateway, "GET /health HTTP/1.1\r\nhost: ")

    assert await asyncio.gather(silent.heard(), trickling.heard()) == ["", ""]


async def test_a_key_with_too_much_in_progress_is_told_to_wait(
    gateway: OneService, rest: httpx.AsyncClient, upload: dict[str, Any]
) -> None:
    size = upload["files"][0]["size_bytes"]
    address = address_of(upload, "train.jsonl", 0)
    # Whichever comes last finds no room; the others hold theirs until they are given up.
    open_ones = [await Stalled.at(gateway, put(address, size, "x")) for _ in range(CALLS_MAX + 1)]

    told = sorted(await asyncio.gather(*(one.heard() for one in open_ones)))

    assert [one.split()[1] for one in told] == [*["408"] * CALLS_MAX, "429"]
    head, _, body = told[-1].partition("\r\n\r\n")
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert error["facts"] == {"limit": str(CALLS_MAX), "kind": "calls"}
    assert "retry-after: 1" in head.lower().splitlines()
    assert (await rest.get(DATASETS)).status_code == 200


async def test_a_catalog_that_is_away_is_told_without_its_address(
    catalog: OneService, rest: httpx.AsyncClient, upload: dict[str, Any]
) -> None:
    size = upload["files"][0]["size_bytes"]
    address = address_of(upload, "train.jsonl", 0)

    async def cut() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(0.5)
        catalog.control.kill()
        yield b"x" * (size - 1)

    during = await rest.put(address, content=cut())
    try:
        after = [await rest.get(DATASETS), await rest.put(address, content=b"x" * size)]
    finally:
        catalog.control.start()
    async with asyncio.timeout(60):
        while (await rest.get(DATASETS)).status_code != 200:
            await asyncio.sleep(0.2)

    for answer in (during, *after):
        error = refusal(answer, 503)
        assert (error["reason"], error["facts"]) == ("SERVICE_AWAY", {"service": "catalog"})
        assert int(answer.headers["retry-after"]) >= 1
        assert str(catalog.port) not in answer.text


async def test_requests_are_counted_by_route(gateway: OneService, rest: httpx.AsyncClient) -> None:
    await rest.get(f"{DATASETS}/some-name")
    await rest.get("/some/where/else")

    async with httpx.AsyncClient(trust_env=False) as http:
        told = (await http.get(f"http://{LOOPBACK}:{gateway.metrics_port}/metrics")).text

    assert f'lehr_http_handled_total{{route="{DATASETS}/{{dataset}}",status="404"}}' in told
    assert 'lehr_http_handled_total{route="unknown",status="404"}' in told
    assert "some-name" not in told


async def test_a_gateway_that_is_told_to_stop_answers_what_is_in_progress(
    gateway: OneService, upload: dict[str, Any]
) -> None:
    size = upload["files"][0]["size_bytes"]
    stalled = await Stalled.at(gateway, put(address_of(upload, "train.jsonl", 0), size, "x"))
    trickling = asyncio.create_task(stalled.trickle())
    await asyncio.sleep(IDLE_SECONDS)
    began = time.monotonic()
    stopping = asyncio.create_task(asyncio.to_thread(gateway.control.stop))
    try:
        told = await stalled.heard()
        took = time.monotonic() - began
    finally:
        trickling.cancel()
        await stopping
        gateway.control.start()

    assert took < 12
    assert told.startswith("HTTP/1.1 503 ")
    assert '"STOPPING"' in told
    raised = [line for line in gateway.log.read_text().splitlines() if "Traceback" in line]
    assert raised == []
