"""Configurations and splits, resolved by the unmodified library against a small hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lehr.errors import PlatformError
from services.catalog.hub.calling import Hub
from tests.support.hub_process import ROWS, fetch, resolve
from tests.support.hub_stub import HubStub, a_hub
from tests.support.targets import Target


@pytest.fixture
def stub() -> Iterator[HubStub]:
    with a_hub() as running:
        yield running


@pytest.fixture
def hub(stub: HubStub, tmp_path: Path) -> Hub:
    return Hub(
        endpoint=stub.endpoint, allowed=f"{stub.host},{stub.cdn}", folder=tmp_path / "children"
    )


CARD = b"""---
license: cc-by-nc-4.0
configs:
- config_name: short
  data_files:
  - split: train
    path: short/*.jsonl
  - split: validation
    path: held/out.jsonl
- config_name: long
  data_files: long/all.jsonl
---
"""


async def test_a_configuration_and_split_are_resolved_to_their_files(
    hub: Hub, stub: HubStub
) -> None:
    files = {
        "README.md": CARD,
        "short/b.jsonl": ROWS,
        "short/a.jsonl": ROWS,
        "held/out.jsonl": ROWS,
        "long/all.jsonl": ROWS,
    }
    repo = stub.add("dataset", "acme/rows", files)
    short = await resolve(hub, "dataset", "acme/rows", config="short")
    held = await resolve(hub, "dataset", "acme/rows", config="short", split="validation")
    long = await resolve(hub, "dataset", "acme/rows", config="long")
    assert [one["path"] for one in short["files"]] == ["short/a.jsonl", "short/b.jsonl"]
    assert [one["path"] for one in held["files"]] == ["held/out.jsonl"]
    assert [one["path"] for one in long["files"]] == ["long/all.jsonl"]
    assert {one["commit"] for one in (short, held, long)} == set(repo.commits)
    with pytest.raises(PlatformError, match="train, validation"):
        await resolve(hub, "dataset", "acme/rows", config="short", split="test")
    with pytest.raises(PlatformError, match="long, short"):
        await resolve(hub, "dataset", "acme/rows", config="medium")
    with pytest.raises(PlatformError, match="long"):
        await resolve(hub, "dataset", "acme/rows")


async def test_files_are_found_without_a_card(hub: Hub, stub: HubStub) -> None:
    stub.add("dataset", "acme/rows", {"data/train-0.jsonl": ROWS, "data/test-0.jsonl": ROWS})
    found = await resolve(hub, "dataset", "acme/rows")
    assert [one["name"] for one in found["files"]] == ["train-0.jsonl"]
    assert await fetch(hub, "dataset", "acme/rows") == {"train-0.jsonl": ROWS}


async def test_a_dataset_script_is_refused_and_never_fetched(hub: Hub, stub: HubStub) -> None:
    stub.add("dataset", "acme/rows", {"rows.py": b"open('marker', 'w')", "train.jsonl": ROWS})
    with pytest.raises(PlatformError, match="not run") as refused:
        await resolve(hub, "dataset", "acme/rows")
    assert refused.value.reason == "CODE_REFUSED"
    assert not stub.requests_of("rows.py")


@pytest.mark.parametrize(
    "where",
    [
        "http://127.0.0.1:{port}/rows.jsonl",
        "ftp://127.0.0.1:{port}/rows.jsonl",
        "file:///etc/passwd",
        "/etc/passwd",
    ],
)
async def test_a_card_that_points_elsewhere_is_refused(
    hub: Hub, stub: HubStub, internal: Target, where: str
) -> None:
    path = where.format(port=internal.port)
    card = f"---\nconfigs:\n- config_name: default\n  data_files: {path}\n---\n"
    stub.add("dataset", "acme/evil", {"README.md": card.encode(), "train.jsonl": ROWS})
    with pytest.raises(PlatformError) as refused:
        await resolve(hub, "dataset", "acme/evil")
    assert refused.value.reason in {"EGRESS_REFUSED", "IMPORT_REFUSED"}
    assert internal.connections == 0


async def test_a_file_that_holds_no_rows_is_refused(hub: Hub, stub: HubStub) -> None:
    stub.add("dataset", "acme/texts", {"train.txt": b"a\nb\n"})
    with pytest.raises(PlatformError, match=r"train\.txt") as refused:
        await resolve(hub, "dataset", "acme/texts")
    assert refused.value.reason == "IMPORT_REFUSED"
