"""What tests of uploads by HTTP share: a plain client's way through an upload."""

import hashlib
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx

DATASETS = "/v1/lehr/datasets"
MODELS = "/v1/lehr/models"
WITHIN_SECONDS = 60.0


def announced(*paths: Path) -> list[dict[str, Any]]:
    """Return what is told of files before they are sent."""
    return [
        {
            "name": path.name,
            "size_bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in paths
    ]


async def begun(
    http: httpx.AsyncClient, name: str, *paths: Path, at: str = DATASETS, **more: Any
) -> dict[str, Any]:
    """Begin an upload, or go on with it."""
    answer = await http.post(at, json={"name": name, "files": announced(*paths), **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def address_of(upload: dict[str, Any], file: str, number: int, *, at: str = DATASETS) -> str:
    """Return where a part goes."""
    return f"{at}/{upload['id']}/files/{file}/parts/{number}"


async def sent(
    http: httpx.AsyncClient,
    upload: dict[str, Any],
    *paths: Path,
    only: Iterable[int] | None = None,
    at: str = DATASETS,
) -> None:
    """Send the missing parts of an upload, or those with some numbers."""
    content = {path.name: path for path in paths}
    for file in upload["files"]:
        for part in file["missing_parts"]:
            if only is None or part["number"] in only:
                with content[file["name"]].open("rb") as opened:
                    opened.seek(part["offset_bytes"])
                    body = opened.read(part["size_bytes"])
                address = address_of(upload, file["name"], part["number"], at=at)
                answer = await http.put(address, content=in_pieces(body))
                assert answer.status_code == 200, answer.text


async def in_pieces(body: bytes, size: int = 2**16) -> AsyncIterator[bytes]:
    """Yield a body bit by bit."""
    for at in range(0, len(body), size):
        yield body[at : at + size]


async def settled(http: httpx.AsyncClient, entry_id: str, *, at: str = DATASETS) -> dict[str, Any]:
    """Commit until an entry is ready or refused."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while True:
        answer = await http.post(f"{at}/{entry_id}/commit")
        assert answer.status_code == 200, answer.text
        if answer.json()["state"] in ("READY", "REFUSED"):
            return dict(answer.json())
        assert time.monotonic() < deadline


def refusal(answer: httpx.Response, status: int) -> dict[str, Any]:
    """Return the error object of a refusal, which has all its fields and is JSON."""
    assert answer.status_code == status, f"{answer.status_code} {answer.text}"
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "reason", "facts", "fields"}
    return dict(error)
