"""Questions to the process that talks to hubs, and what it is asked about."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from services.catalog.hub.calling import Hub

TOKEN = "hf_TESTtestTESTtestTESTtest12345678"
ROWS = b"".join(json.dumps({"text": f"row {number}"}).encode() + b"\n" for number in range(50))
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"w" * 300_000,
    "README.md": b"---\nlicense: mit\n---\n",
}


async def resolve(
    hub: Hub, kind: str, repo_id: str, *, allow_pickle: str = "", **more: str
) -> dict[str, Any]:
    token = more.pop("token", "")
    source = {"repo_id": repo_id, "revision": "main", "config": "", "split": "train", **more}
    return await hub.ask(
        f"resolve_{kind}",
        what=repo_id,
        credential="mine" if token else "",
        secret={"token": token} if token else {},
        source=source,
        allow_pickle=[allow_pickle],
    )


async def fetch(
    hub: Hub, kind: str, repo_id: str, *, seconds: float = 120, **more: str
) -> dict[str, bytes]:
    """Return what arrived, by name."""
    found = await resolve(hub, kind, repo_id, **more)
    token = more.get("token", "")
    arrived = {}
    async with hub.converse(
        "fetch_repository",
        time_limit=timedelta(seconds=seconds),
        what=repo_id,
        credential="mine" if token else "",
        secret={"token": token} if token else {},
        source={"repo_id": repo_id, "revision": found["commit"], "repo_type": kind},
        files=found["files"],
    ) as child:
        async for message in child.messages():
            if "file" in message:
                arrived[message["file"]["name"]] = Path(message["file"]["path"]).read_bytes()
                child.put_away()
    return arrived


def children() -> list[psutil.Process]:
    """Return the processes that talk to hubs for this one."""
    return [
        one
        for one in psutil.Process().children(recursive=True)
        if "services.catalog.hub" in one.cmdline()
    ]
