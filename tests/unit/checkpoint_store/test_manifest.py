"""What may be in a checkpoint, and when storage agrees with its manifest."""

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.errors import InvalidArgument
from services.checkpoint_store.domain import manifest
from services.checkpoint_store.domain.checkpoint import MOVES, CheckpointState, File
from tests.unit.checkpoint_store.builders import a_checkpoint

SHA = hashlib.sha256(b"").hexdigest()


def a_file(name: str, size_bytes: int = 1) -> File:
    return File(name=name, size_bytes=size_bytes, sha256=SHA)


@pytest.mark.parametrize(
    "name",
    [
        "adapter_model.safetensors",
        "model-00001-of-00002.safetensors",
        "config.json",
        "series.jsonl",
        "README.md",
        "merges.txt",
        "tokenizer.model",
        "chat_template.jinja",
    ],
)
def test_what_loads_without_executing_is_allowed(name: str) -> None:
    manifest.check_files([a_file(name)])


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin",
        "rng.pt",
        "rng.pth",
        "state.pkl",
        "last.ckpt",
        "code.py",
        "noending",
        "",
        ".",
        "..",
        ".hidden.json",
        "../up.json",
        "a/b.json",
        "a\\b.json",
        "/etc/x.json",
        "a\x00.json",
        "a b.json",
        "\u00e9.json",
        "x.json\n",
        "a" * 250 + ".json",
        manifest.MANIFEST,
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        manifest.check_files([a_file(name)])

    assert refused.value.fields[0].field == "files[0].name"


@pytest.mark.parametrize(
    ("files", "field"),
    [
        ([], "files"),
        ([a_file("a.json"), a_file("a.json")], "files"),
        ([a_file("a.json", size_bytes=-1)], "files[0].size_bytes"),
        ([replace(a_file("a.json"), sha256="X" * 64)], "files[0].sha256"),
        ([replace(a_file("a.json"), sha256="")], "files[0].sha256"),
        ([a_file(f"{number}.json") for number in range(1001)], "files"),
    ],
)
def test_wrong_lists_are_refused(files: list[File], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        manifest.check_files(files)

    assert field in {one.field for one in refused.value.fields}


@pytest.mark.parametrize(
    ("names", "claimed", "expected"),
    [
        (["model.safetensors", "optimizer.safetensors"], True, True),
        (["model.safetensors", "optimizer.safetensors"], False, False),
        (["model.safetensors", "config.json"], True, False),
        (["adapter_model.safetensors"], True, False),
        (["model-00001-of-00002.safetensors"], True, False),
        (["trainer_state.json"], True, True),
    ],
)
def test_weights_without_optimizer_are_never_the_whole_state(
    names: list[str], claimed: bool, expected: bool
) -> None:
    files = [a_file(name) for name in names]

    assert manifest.holds_whole_state(files, claimed=claimed) is expected


def test_the_manifest_is_the_same_at_every_attempt_and_lists_every_file() -> None:
    checkpoint = a_checkpoint(files=(a_file("b.json"), a_file("a.json")))
    turned = replace(checkpoint, files=checkpoint.files[::-1], version=9)

    content = manifest.body(checkpoint)

    assert manifest.body(turned) == content
    assert [file["name"] for file in json.loads(content)["files"]] == ["a.json", "b.json"]


def test_storage_agrees_only_in_size_and_hash() -> None:
    file = a_file("a.json", size_bytes=3)

    assert manifest.mismatch(file, size_bytes=3, sha256=SHA) is None
    assert manifest.mismatch(file, size_bytes=3) is None
    assert "2 bytes instead of 3" in (manifest.mismatch(file, size_bytes=2, sha256=SHA) or "")
    assert "SHA-256" in (manifest.mismatch(file, size_bytes=3, sha256="0" * 64) or "")


@given(st.lists(st.integers(0, 100), max_size=10), st.integers(0, 300))
def test_files_are_hashed_smallest_first_and_within_the_budget(
    sizes: list[int], budget: int
) -> None:
    files = [a_file(f"{index}.json", size) for index, size in enumerate(sizes)]

    chosen = manifest.hashed_within(files, budget_bytes=budget)

    hashed = [file.size_bytes for file in files if file.name in chosen]
    left = [file.size_bytes for file in files if file.name not in chosen]
    assert sum(hashed) <= budget
    assert max(hashed, default=0) <= min(left, default=100)
    assert not left or sum(hashed) + min(left) > budget


def test_two_lists_differ_in_a_named_file() -> None:
    one, other = a_file("a.json"), a_file("b.json")

    assert manifest.difference([one, other], [other, one]) is None
    assert manifest.difference([one], [one, other]) == "b.json"
    assert manifest.difference([one], [replace(one, size_bytes=2)]) == "a.json"


def test_nothing_comes_back_from_deletion() -> None:
    reachable = {state: set(MOVES[state]) for state in CheckpointState}

    assert reachable[CheckpointState.DELETED] == set()
    assert reachable[CheckpointState.DELETING] == {CheckpointState.DELETED}
    assert CheckpointState.UPLOADING not in set().union(*reachable.values())
