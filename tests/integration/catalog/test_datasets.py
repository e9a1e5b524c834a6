"""Datasets: what is accepted, what is refused and where, and that bytes stay as they were."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1 import catalog_pb2_grpc
from lehr.client import AsyncClient, transfer
from lehr.client.connection import Connection, Endpoint
from lehr.errors import FailedPrecondition, InvalidArgument, NotFound
from lehr.stack.ports import LOOPBACK
from tests.support.doors import FIRST_KEY
from tests.support.one_service import OneService


def chat(question: str, answer: str, **more: Any) -> dict[str, Any]:
    """Return a row of one question and one answer."""
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **more}


def write(folder: Path, *rows: Any) -> Path:
    """Write rows, or lines as they stand, to a file."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path = folder / "train.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def reasons(dataset: pb.Dataset) -> dict[str, tuple[int, list[int]]]:
    """Return count and lines of every problem by its reason."""
    return {one.reason: (one.row_count, list(one.lines)) for one in dataset.problems}


async def test_a_dataset_is_accepted_with_its_numbers(client: AsyncClient, tmp_path: Path) -> None:
    path = write(tmp_path, *(chat(f"q{number}", f"a{number}") for number in range(5)))

    answer = await client.datasets.upload(path, name="five-rows")

    assert answer.is_accepted
    found = answer.dataset
    assert (found.row_count, found.distinct_count, found.row_kind) == (5, 5, "messages")
    assert not found.problems


async def test_the_same_bytes_are_the_same_revision(client: AsyncClient, tmp_path: Path) -> None:
    path = write(tmp_path, chat("q", "a"), chat("r", "b"))

    first = await client.datasets.upload(path, name="twice")
    again = await client.datasets.upload(path, name="twice")

    assert first.dataset == again.dataset


async def test_the_uploaded_bytes_come_back_unchanged(
    gateway: OneService, client: AsyncClient, tmp_path: Path
) -> None:
    odd = '{"messages": [{"role": "user",   "content": "h\\u0069"}, '
    odd += '{"content": null, "role": "assistant", "tool_calls": [{"type": "function", '
    odd += '"function": {"name": "f", "arguments": {"note": null, "time": 1754006400}}}]}]}'
    path = write(tmp_path, odd)
    await client.datasets.upload(path, name="odd-bytes")

    connection = Connection(Endpoint(address=f"{LOOPBACK}:{gateway.port}", api_key=FIRST_KEY))
    stub = catalog_pb2_grpc.CatalogServiceStub(connection.channel)
    links = await connection.call(stub.DownloadFiles, pb.DownloadFilesRequest(dataset="odd-bytes"))
    await connection.close()
    got = httpx.get(links.files[0].url, trust_env=False)

    assert got.content == path.read_bytes()


async def test_every_bad_row_is_named_by_line_and_nothing_is_kept(
    client: AsyncClient, tmp_path: Path
) -> None:
    rows = [chat(f"q{number}", "a") for number in range(30)]
    bad_role = {"messages": [{"role": "bing", "content": "x"}]}
    lone = chat("x\ud83dy", "a")
    path = write(tmp_path, *rows, '{"messages": [', bad_role, bad_role, lone)

    answer = await client.datasets.upload(path, name="bad-rows")

    assert not answer.is_accepted
    lines = sorted(line for one in answer.dataset.problems for line in one.lines)
    assert lines == [31, 32, 33, 34]
    assert any("'bing'" in one.description for one in answer.dataset.problems)
    with pytest.raises(NotFound):
        await client.datasets.inspect("bad-rows")


async def test_the_whole_file_decides_not_its_first_block(
    client: AsyncClient, tmp_path: Path
) -> None:
    rows = [chat(f"q{number}", f"a{number} " + "x" * 20, meta=None) for number in range(6000)]
    rows += [chat("late", "a", meta="late"), chat("k", "a", meta={"k": 1}), chat("no", "a")]
    rows.append(chat("tags", "a", tags=["a"]))

    forth = await client.datasets.upload(write(tmp_path, *rows), name="late-types")
    back = await client.datasets.upload(write(tmp_path, *reversed(rows)), name="late-types-back")

    assert (forth.dataset.row_count, back.dataset.row_count) == (6004, 6004)


async def test_copies_are_reported_with_their_lines(client: AsyncClient, tmp_path: Path) -> None:
    copy = chat("q0", "a0")
    rows = [copy, chat("q1", "a1"), copy, chat("q2", "a2"), chat("q3", "a3"), copy]
    rows += [chat("q4", "a4"), chat("q5", "a5"), copy, chat("q6", "a6")]

    answer = await client.datasets.upload(write(tmp_path, *rows), name="dups")

    assert answer.dataset.distinct_count == 7
    assert reasons(answer.dataset)["DUPLICATE_ROW"] == (3, [3, 6, 9])


async def test_control_characters_are_accepted_and_named(
    client: AsyncClient, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("ok", "fine"), chat("nul", "a\0b"), chat("pair", "x\U0001f600y"))

    answer = await client.datasets.upload(path, name="nul")

    assert answer.is_accepted
    assert reasons(answer.dataset) == {"CONTROL_CHARACTERS": (1, [2])}


async def test_an_empty_file_is_refused_before_it_is_sent(
    client: AsyncClient, tmp_path: Path
) -> None:
    path = tmp_path / "empty.jsonl"
    path.touch()

    with pytest.raises(InvalidArgument, match="0 bytes"):
        await client.datasets.upload(path, name="empty")


async def test_a_file_that_arrived_altered_is_not_committed_and_may_be_sent_again(
    gateway: OneService, client: AsyncClient, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("altered", "a"))
    connection = Connection(Endpoint(address=f"{LOOPBACK}:{gateway.port}", api_key=FIRST_KEY))
    stub = catalog_pb2_grpc.CatalogServiceStub(connection.channel)
    announced = pb.AddDatasetRequest(name="altered", files=[transfer.describe(path)])
    added = await connection.call(stub.AddDataset, announced)
    [part] = added.uploads[0].missing_parts
    evil = path.read_bytes().upper()
    httpx.put(part.url, content=evil, trust_env=False).raise_for_status()

    commit = pb.CommitDatasetRequest(dataset_id=added.dataset_id)
    with pytest.raises(FailedPrecondition, match="SHA-256") as refusal:
        await connection.call(stub.CommitDataset, commit)
    await connection.close()
    answer = await client.datasets.upload(path, name="altered")

    assert refusal.value.reason == "UPLOAD_INCOMPLETE"
    assert answer.is_accepted
