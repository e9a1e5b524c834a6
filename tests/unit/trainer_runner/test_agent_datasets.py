"""Which files of a dataset an agent fetches: rows, images, and tokens of its own code."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from lehr.errors import FailedPrecondition, InvalidArgument, Unavailable
from lehr.samples.tokens import SampleTokenizer
from lehr.training.spec import JobSpec
from services.trainer_runner.agent.datasets import DatasetFiles, Datasets, tokens_name
from services.trainer_runner.agent.leases import Grant
from services.trainer_runner.agent.peers import FileLink, Peers
from services.trainer_runner.agent.transfer import Transfer
from tests.support.toy_model import PLAIN_TEMPLATE, write_toy_model

GRANT = cast("Grant", object())
REVISION = "a" * 64


@dataclass
class FakePeers:
    """A catalog with one dataset."""

    names: list[str]

    async def dataset_files(
        self, grant: Grant, dataset_id: str
    ) -> tuple[str, tuple[FileLink, ...]]:
        return REVISION, tuple(
            FileLink(name=name, size_bytes=1, sha256="b" * 64) for name in self.names
        )


@dataclass
class FakeTransfer:
    """Pretends to download, but for some names."""

    missing: set[str] = field(default_factory=set)

    async def download(self, link: FileLink, folder: Path, *, name: str | None = None) -> Path:
        if link.name in self.missing:
            raise Unavailable("the store is away")
        return folder / (name or link.name)


def a_spec(**data: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "j", "model": "m", "dataset": "d", "data": data})


async def fetched(
    names: list[str], *, tokens: str | None, missing: set[str] | None = None
) -> DatasetFiles:
    datasets = Datasets(
        cast("Peers", FakePeers(names)),
        cast("Transfer", FakeTransfer(missing or set())),
        Path("in"),
        tokens=tokens,
    )
    return await datasets.get(GRANT, "ds_1", REVISION, "dataset")


async def test_rows_images_and_the_fitting_tokens_are_fetched() -> None:
    names = ["rows.jsonl.zst", "images.zip", "other.safetensors", "mine.safetensors"]

    found = await fetched(names, tokens="mine.safetensors")

    assert found == DatasetFiles(
        rows=Path("in/dataset.rows.jsonl.zst"),
        images=Path("in/dataset.images.zip"),
        tokens=Path("in/dataset.safetensors"),
    )


@pytest.mark.parametrize("tokens", [None, "mine.safetensors"])
async def test_tokens_of_another_tokenizer_are_left_alone(tokens: str | None) -> None:
    found = await fetched(["rows.jsonl.zst", "other.safetensors"], tokens=tokens)

    assert (found.images, found.tokens) == (None, None)


async def test_tokens_that_cannot_be_fetched_do_not_stop_a_run() -> None:
    names = ["rows.jsonl.zst", "mine.safetensors"]

    found = await fetched(names, tokens="mine.safetensors", missing={"mine.safetensors"})

    assert found.tokens is None


async def test_rows_that_cannot_be_fetched_do() -> None:
    with pytest.raises(Unavailable):
        await fetched(["rows.jsonl.zst"], tokens=None, missing={"rows.jsonl.zst"})


async def test_a_dataset_without_canonical_rows_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"no rows\.jsonl\.zst"):
        await fetched(["train.jsonl"], tokens=None)


async def test_another_revision_is_refused() -> None:
    datasets = Datasets(
        cast("Peers", FakePeers(["rows.jsonl.zst"])),
        cast("Transfer", FakeTransfer()),
        Path("in"),
        tokens=None,
    )

    with pytest.raises(FailedPrecondition, match="at revision aaaaaaaaaaaa"):
        await datasets.get(GRANT, "ds_1", "c" * 64, "dataset")


def test_the_name_is_the_digest_of_tokenizer_and_template(tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path)

    own, bundled = (
        tokens_name(folder, a_spec(**more)) for more in ({}, {"chat_template": "zephyr"})
    )

    assert own == f"{SampleTokenizer.load(folder).digest}.safetensors"
    assert bundled not in (None, own)


def test_there_is_no_name_where_tokens_change_from_day_to_day(tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path, template="{{ strftime_now('%Y') }}" + PLAIN_TEMPLATE)

    assert tokens_name(folder, a_spec()) is None


def test_there_is_no_name_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))

    assert tokens_name(tmp_path, a_spec()) is None
