"""Spans over HTTP to a collector that is only a socket."""

import asyncio
import json

from opentelemetry.sdk.trace.export import SpanExportResult

from lehr.rpc.export import JsonExporter
from tests.unit.lehr_rpc.test_export import recorded


async def test_a_batch_is_posted_as_json() -> None:
    taken: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        _, _, length = head.lower().partition(b"content-length: ")
        taken.extend((head, await reader.readexactly(int(length.split(b"\r\n")[0]))))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        exporter = JsonExporter("billing", f"http://127.0.0.1:{port}/")
        result = await asyncio.to_thread(exporter.export, recorded())

    assert result is SpanExportResult.SUCCESS
    assert taken[0].startswith(b"POST /v1/traces HTTP/1.1")
    assert len(json.loads(taken[1])["resourceSpans"][0]["scopeSpans"][0]["spans"]) == 2


async def test_a_collector_that_is_away_costs_the_spans_and_nothing_else() -> None:
    exporter = JsonExporter("billing", "http://127.0.0.1:1")

    assert await asyncio.to_thread(exporter.export, recorded()) is SpanExportResult.FAILURE
