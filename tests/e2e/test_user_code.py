"""What user code prints arrives whole, and without secrets; what it is given opens no door."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest

from lehr.stack import SERVICES
from lehr.stack.state import StackState
from tests.e2e.audit import trainer_of
from tests.e2e.world import World

READ_BYTES = 4096
#: A dummy, of the look of a model hub's tokens.
TOKEN = "hf_TESTtestTESTtestTESTtest12345678"
LAST = "the last line"


def printing(*contents: bytes, **more: Any) -> dict[str, Any]:
    """Return a script that prints one of these before each step."""
    steps = {
        step: {"print_bytes_base64": base64.b64encode(content).decode()}
        for step, content in enumerate(contents, start=1)
    }
    return {"total_steps": len(contents), "step_seconds": 0.2, "steps": steps, **more}


def splits(content: bytes) -> set[tuple[int, int]]:
    """Return where reads of ``READ_BYTES`` cut: width of a character, and bytes of it before."""
    found = set()
    for cut in range(READ_BYTES, len(content), READ_BYTES):
        before = content[:cut]
        begun = len(before) - len(before.decode(errors="ignore").encode())
        width = len(content[cut - begun :].decode(errors="ignore")[0].encode())
        found.add((width, begun))
    return found


async def texts(lines: AsyncIterator[Any]) -> list[str]:
    """Read a log up to its last printed line."""
    found: list[str] = []
    async for line in lines:
        found.append(line.text)
        if line.text == LAST:
            break
    return found


async def test_text_arrives_whole_live_and_stored_wherever_reads_cut_it(world: World) -> None:
    lines = [f"{number:04}{'x' * (number % 13)}" + "é漢\U0001f600" * 7 for number in range(2000)]
    whole = "".join(f"{line}\n" for line in lines).encode()
    assert splits(whole) >= {(width, cut) for width in (1, 2, 3, 4) for cut in range(width)}
    script = printing(whole, b"bad \xff\xfe end\n", f"after é\n{LAST}\n".encode())

    job_id = await world.launch(script, name="characters")
    async with asyncio.timeout(120):
        live = await texts(world.client.jobs.watch_logs(job_id))
    await world.rests(job_id)
    stored = await texts(world.client.jobs.logs(job_id))

    wanted = {*lines, r"bad \xff\xfe end", "after é", LAST}
    assert [text for text in live if text in wanted] == [
        *lines,
        r"bad \xff\xfe end",
        "after é",
        LAST,
    ]
    assert live == stored[: len(live)]
    assert not [text for text in stored if "\ufffd" in text]


async def test_a_token_that_is_printed_is_kept_nowhere(world: World, tmp_path: Path) -> None:
    half, rest = TOKEN[:17].encode(), TOKEN[17:].encode()
    script = printing(
        f"HF_TOKEN={TOKEN}\n".encode(),
        b"in two reads " + half,
        rest + b"\n",
        f"GET https://someone:{TOKEN}@models.example/x?token={TOKEN} failed\n".encode(),
        f"{LAST}\n".encode(),
    )
    job_id = await world.launch(script, name="tells a token")
    async with asyncio.timeout(120):
        live = await texts(world.client.jobs.watch_logs(job_id))
    job = await world.rests(job_id)
    stored = await world.log(job_id)
    for one in await world.client.checkpoints.list(job_id):
        place = tmp_path / one.checkpoint_id
        await world.client.checkpoints.download(one.checkpoint_id, place, with_training_state=True)
    told = [json.dumps(event) for event in await events_of(world, job_id)]

    shown = "\n".join([*live, stored, str(job), *told])
    assert stored.count("[masked]") >= 4
    assert "HF_TOKEN=[masked]" in live
    assert "in two reads [masked]" in live
    assert len(told) >= 3
    assert TOKEN not in shown
    # Database, broker, object store, spools and logs of all parts.
    files = [*world.stack.folder.rglob("*"), *tmp_path.rglob("*")]
    assert len(files) > 100
    assert [file for file in files if holds(file, [TOKEN.encode()])] == []


async def events_of(world: World, job_id: str) -> list[Mapping[str, Any]]:
    """Return what was told of a job and its run."""
    since = (await world.client.jobs.get(job_id)).create_time.ToDatetime()
    found: list[Mapping[str, Any]] = []
    async for event in world.client.events.tail(job_id=job_id, since=since):
        found.append(event)
        if event["type"].startswith("lehr.job.finished"):
            break
    return found


def holds(file: Path, secrets: Iterable[bytes]) -> bool:
    """Tell whether a file holds one of these."""
    try:
        content = file.read_bytes() if file.is_file() else b""
    except OSError:
        return False
    return any(secret in content for secret in secrets)


def secrets_of(world: World) -> list[bytes]:
    """Return what the parts of the installation know and nobody else may."""
    known = world.stack.stack.secrets()
    keys = [line for key in known.identity.values() for line in key.splitlines()]
    bodies = [line for line in keys if line and not line.startswith("-----")]
    words = [
        known.postgres_admin,
        *known.postgres.values(),
        known.nats,
        known.s3_secret_key,
        known.catalog,
        known.api_key,
        *bodies,
    ]
    return [word.encode() for word in words]


async def test_a_trainer_is_given_no_secret_and_no_page_or_command_line_shows_one(
    world: World,
) -> None:
    job_id = await world.launch({"total_steps": 600, "step_seconds": 0.1}, name="looks around")
    await world.reaches(job_id, 3)
    trainer = await trainer_of(world, job_id)
    secrets = secrets_of(world)
    parts = [part.pid for part in world.stack.status().parts if part.pid is not None]
    known = [trainer, *(psutil.Process(pid) for pid in parts)]
    family = {one for root in known for one in (root, *root.children(recursive=True))}

    given = Path(f"/proc/{trainer.pid}/environ").read_bytes()
    commands = [" ".join(one.cmdline()).encode() for one in family]
    ports = StackState.read(world.stack.stack.layout.state).ports
    async with httpx.AsyncClient(trust_env=False) as client:
        pages = {
            name: (await client.get(f"http://127.0.0.1:{port}/metrics")).content
            for name, port in ports.items()
            if name.endswith("_metrics")
        }
    await world.client.jobs.stop(job_id)
    await world.rests(job_id)

    assert len(secrets) > 2 * len(SERVICES)
    assert [name for name in given.split(b"\0") if name.startswith(b"LEHR_LEASE")]
    assert not [secret for secret in secrets if secret in given]
    assert b"postgres" not in given
    assert b"LEHR_ADDRESSES" not in given
    assert not [one for one in commands if any(secret in one for secret in secrets)]
    assert set(pages) >= {f"{name}_metrics" for name in SERVICES}
    assert all(len(page) > 100 for page in pages.values())
    assert not [name for name, page in pages.items() if any(one in page for one in secrets)]


async def test_every_part_listens_on_this_machine_alone(world: World) -> None:
    found = [
        connection.laddr.ip
        for part in world.stack.status().parts
        if part.pid is not None
        for process in (psutil.Process(part.pid), *psutil.Process(part.pid).children(True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]

    assert len(found) >= 2 * len(SERVICES)
    assert {address.removeprefix("::ffff:") for address in found} == {"127.0.0.1"}


@pytest.mark.parametrize("service", sorted(SERVICES))
async def test_no_method_of_a_service_answers_a_caller_without_proof(
    world: World, service: str
) -> None:
    """Whoever reaches a port from inside the network, such as a trainer, comes without a token."""
    module = importlib.import_module(f"lehr.api.{service}.v1.{service}_pb2")
    codes = {}
    async with grpc.aio.insecure_channel(world.stack.address(service)) as channel:
        for described in module.DESCRIPTOR.services_by_name.values():
            for method in described.methods:
                path = f"/{described.full_name}/{method.name}"
                call = channel.stream_stream(path)(iter([b""]), timeout=10)
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await call.read()
                codes[path] = await call.code()

    assert codes
    assert set(codes.values()) == {grpc.StatusCode.UNAUTHENTICATED}, codes
