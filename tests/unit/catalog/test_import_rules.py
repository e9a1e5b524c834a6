"""What of a repository or bucket is taken, and what is refused."""

from collections import namedtuple
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import PlatformError
from services.catalog.domain import choosing
from services.catalog.domain.choosing import (
    PACK,
    check_sizes,
    check_tables,
    dataset_files,
    model_files,
    named,
    split_files,
)
from services.catalog.domain.imports import (
    HubRepo,
    ImportPlan,
    RemoteFile,
    S3Prefix,
    check_commit,
    wait_before,
)
from services.catalog.handlers import importing


def remote(*paths: str, size_bytes: int = 1) -> list[RemoteFile]:
    return [RemoteFile(path=path, size_bytes=size_bytes, digest=f"git:{path}") for path in paths]


def names(files: list[RemoteFile]) -> list[str]:
    return [file.name for file in files]


NEEDED = ("config.json", "tokenizer.json")


@pytest.mark.parametrize(
    ("paths", "taken"),
    [
        (["model.safetensors"], ["model.safetensors"]),
        (
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ),
        (["model.safetensors", "consolidated.safetensors"], ["model.safetensors"]),
        (["weights.safetensors"], ["weights.safetensors"]),
        (
            ["model-00001-of-00001.safetensors", "consolidated.safetensors"],
            ["model-00001-of-00001.safetensors"],
        ),
        (
            ["model.safetensors", "model-1-of-1.safetensors", "model.safetensors.index.json"],
            ["model.safetensors"],
        ),
        (["model.safetensors", "pytorch_model.bin", "flax_model.msgpack"], ["model.safetensors"]),
        (["model.safetensors", "modeling.py", "original/params.json"], ["model.safetensors"]),
        (
            ["model.safetensors", "chat_template.jinja"],
            ["chat_template.jinja", "model.safetensors"],
        ),
        (["model.safetensors", "training_args.bin", ".gitattributes"], ["model.safetensors"]),
    ],
)
def test_a_model_is_its_weights_once_and_what_describes_them(
    paths: list[str], taken: list[str]
) -> None:
    assert sorted(names(model_files(remote(*NEEDED, *paths)))) == sorted([*NEEDED, *taken])


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        (["model.safetensors"], "IMPORT_REFUSED"),
        (["config.json"], "IMPORT_REFUSED"),
        (["config.json", "sub/model.safetensors"], "IMPORT_REFUSED"),
        (["config.json", "pytorch_model.bin"], "PICKLE_WEIGHTS"),
        (["config.json", "model.ckpt"], "PICKLE_WEIGHTS"),
    ],
)
def test_what_is_no_model_is_refused(paths: list[str], reason: str) -> None:
    with pytest.raises(PlatformError) as refused:
        model_files(remote(*paths))
    assert refused.value.reason == reason


def test_an_allowed_pickle_is_taken_only_where_there_is_no_safetensors() -> None:
    both = remote("config.json", "pytorch_model.bin", "model.safetensors")
    assert names(model_files(both, allow_pickle=True)) == ["config.json", "model.safetensors"]
    found = model_files(remote("config.json", "pytorch_model.bin"), allow_pickle=True)
    assert [(file.path, file.name) for file in found] == [
        ("config.json", "config.json"),
        ("pytorch_model.bin", "model.safetensors"),
    ]
    with pytest.raises(PlatformError, match="pickles only"):
        model_files(remote("config.json", "odd.ckpt"), allow_pickle=True)


ROOT = "hf://datasets/acme/rows@0123/"


def test_files_of_a_split_are_those_of_the_listing() -> None:
    listed = remote("a/train.jsonl", "b/train.jsonl", "test.jsonl")
    splits = {"train": [f"{ROOT}a/train.jsonl", f"{ROOT}b/train.jsonl"], "test": []}
    found = split_files(splits, split="train", root=ROOT, listed=listed)
    assert [(file.path, file.name) for file in found] == [
        ("a/train.jsonl", "a--train.jsonl"),
        ("b/train.jsonl", "b--train.jsonl"),
    ]


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1/rows.jsonl",
        "hf://datasets/other/rows@0123/rows.jsonl",
        "hf://datasets/acme/rows@4567/rows.jsonl",
        "/etc/passwd.jsonl",
        "rows.jsonl",
        f"{ROOT}../rows.jsonl",
        f"{ROOT}unlisted.jsonl",
    ],
)
def test_a_file_outside_the_commit_is_refused(address: str) -> None:
    with pytest.raises(PlatformError, match="outside its own commit"):
        split_files({"train": [address]}, split="train", root=ROOT, listed=remote("rows.jsonl"))


def test_a_split_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(PlatformError, match="test, validation"):
        split_files({"validation": [], "test": []}, split="train", root=ROOT, listed=[])


@pytest.mark.parametrize("path", ["a.txt", "a.png", "a.py", "a", "a.jsonl.bz2", "jsonl"])
def test_a_file_that_holds_no_rows_is_refused_by_name(path: str) -> None:
    with pytest.raises(PlatformError, match="holds"):
        check_tables(remote("a.jsonl", path))


def test_rows_of_every_known_kind_are_taken() -> None:
    paths = ["a.jsonl", "B.JSONL", "c.json.gz", "d.csv.zst", "e.parquet", "f.arrow", "g.zip"]
    assert check_tables(remote(*paths)) == remote(*paths)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["x/a.jsonl", "y/b.jsonl"], ["a.jsonl", "b.jsonl"]),
        (["x/a.jsonl", "y/a.jsonl"], ["x--a.jsonl", "y--a.jsonl"]),
        (["x y/ä b.jsonl"], ["b.jsonl"]),
        ([".hidden.jsonl"], ["hidden.jsonl"]),
        (["x/" + "n" * 200 + ".jsonl"], ["n" * 122 + ".jsonl"]),
    ],
)
def test_names_have_no_folders_and_stay_apart(paths: list[str], expected: list[str]) -> None:
    assert names(named(remote(*paths))) == expected


@pytest.mark.parametrize("paths", [["x/a b.jsonl", "x/a_b.jsonl"], ["x/..."]])
def test_names_that_cannot_be_kept_are_refused(paths: list[str]) -> None:
    with pytest.raises(PlatformError, match="no usable name"):
        named(remote(*paths))


@pytest.mark.parametrize("sizes", [[11], [6, 6], [1, 1, 1, 1], [0], [-1]])
def test_too_many_too_large_and_empty_files_are_refused(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    monkeypatch.setattr(choosing, "FILE_COUNT_MAX", 3)
    files = [
        RemoteFile(path=f"{at}.jsonl", name=f"{at}.jsonl", size_bytes=size)
        for at, size in enumerate(sizes)
    ]
    with pytest.raises(PlatformError):
        check_sizes(files, bytes_max=10)


def test_sizes_within_the_limits_are_taken() -> None:
    check_sizes(named(remote("a", "b", size_bytes=5)), bytes_max=10)


def test_images_and_the_rows_that_name_them_come_in_one_zip_under_their_paths() -> None:
    paths = ["train/metadata.jsonl", "train/1/a.png", "train/B.JPEG", "test/metadata.jsonl"]
    found = dataset_files(remote(*paths, "more.zip"))
    assert [(file.arrives_as, file.name) for file in found] == [
        ("more.zip", "more.zip"),
        (PACK, "train/metadata.jsonl"),
        (PACK, "train/1/a.png"),
        (PACK, "train/B.JPEG"),
    ]
    assert choosing.arrivals(found) == {"more.zip": 1, PACK: 3}


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["a.png"], "no data files"),
        (["a.png", "a.zip"], "no rows that name them"),
        (["a.png", "b/metadata.jsonl"], "no rows that name them"),
        (["a.png", "a.jsonl", "folder.zip"], "rename it"),
        (["a.png", "a.jsonl", "a.txt"], "holds 'a.txt'"),
        (["a.png", "b.png", "c.png", "a.jsonl"], "one by one"),
    ],
)
def test_a_folder_with_images_that_is_not_taken_says_why(
    monkeypatch: pytest.MonkeyPatch, paths: list[str], words: str
) -> None:
    monkeypatch.setattr(choosing, "PACKED_COUNT_MAX", 3)
    with pytest.raises(PlatformError, match=words):
        dataset_files(remote(*paths))


def test_more_single_images_than_one_file_may_hold_are_refused() -> None:
    files = dataset_files(remote("a.png", "a.jsonl", size_bytes=30 * 2**30))
    with pytest.raises(PlatformError, match="single images"):
        check_sizes(files, bytes_max=2**40)


@pytest.mark.parametrize("commit", [None, "", "main", "0" * 39, "0" * 41, "A" * 40, "g" * 40])
def test_a_commit_has_forty_hex_digits(commit: Any) -> None:
    with pytest.raises(PlatformError):
        check_commit(commit)


@pytest.mark.parametrize(
    "source",
    [
        HubRepo(repo_id=""),
        HubRepo(repo_id="a/b/c"),
        HubRepo(repo_id="../b"),
        HubRepo(repo_id="a/..b"),
        HubRepo(repo_id="a--b/c"),
        HubRepo(repo_id="a/b", revision="../main"),
        HubRepo(repo_id="a/b", revision="a b"),
        HubRepo(repo_id="a/b", split="x" * 501),
        HubRepo(repo_id="a/b", config="x\0"),
        S3Prefix(endpoint="http://h", bucket=""),
        S3Prefix(endpoint="http://h", bucket="a/b"),
        S3Prefix(endpoint="http://h\n", bucket="abc"),
    ],
)
def test_a_source_that_cannot_be_one_is_refused(source: HubRepo | S3Prefix) -> None:
    with pytest.raises(PlatformError) as refused:
        source.checked()
    assert refused.value.reason == "IMPORT_REFUSED"


def test_what_is_left_out_of_a_hub_reference_has_a_meaning() -> None:
    asked = HubRepo(repo_id="gpt2").checked()
    assert asked == {"repo_id": "gpt2", "revision": "main", "config": "", "split": "train"}


def test_a_plan_is_read_as_it_was_stored() -> None:
    plan = ImportPlan(
        kind="hub", what="it", source={"a": "b"}, credential="", files=tuple(remote("a", "b"))
    )
    assert ImportPlan.read(asdict(plan)) == plan


def test_a_source_that_is_away_is_asked_six_times_with_longer_waits() -> None:
    waits = [wait_before(tries, timedelta(seconds=5)) for tries in range(1, 7)]
    assert waits == [*(timedelta(seconds=one) for one in (5, 20, 80, 320, 600)), None]


def test_an_import_needs_room_for_the_files_that_lie_on_the_disk_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = namedtuple("usage", ["free"])
    monkeypatch.setattr(importing.shutil, "disk_usage", lambda _: usage(free=30))
    importing.check_room(tmp_path, named(remote("a", "b", "c", "d", size_bytes=10)))
    with pytest.raises(PlatformError) as refused:
        importing.check_room(tmp_path, named(remote("a", "b", "c", size_bytes=11)))
    assert refused.value.reason == "DISK_FULL"
