"""Folders that are made once: whole, or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.demo.folders import make_once
from lehr.demo.tiny import tiny_llama
from lehr.samples.tokens import SampleTokenizer


def write_note(folder: Path) -> None:
    (folder / "note").write_text("whole")


def test_a_folder_that_exists_is_not_filled_again(tmp_path: Path) -> None:
    make_once(tmp_path / "made", write_note)

    assert make_once(tmp_path / "made", lambda folder: pytest.fail("filled twice")).is_dir()


def test_a_failure_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        write_note(folder)
        raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        make_once(tmp_path / "made", fail)

    assert not (tmp_path / "made").exists()
    assert (make_once(tmp_path / "made", write_note) / "note").read_text() == "whole"


def test_the_tiny_model_is_the_same_wherever_it_is_made(tmp_path: Path) -> None:
    first, second = tiny_llama(tmp_path / "a"), tiny_llama(tmp_path / "b")

    names = sorted(path.name for path in first.iterdir())
    assert [(first / name).read_bytes() for name in names] == [
        (second / name).read_bytes() for name in names
    ]


def test_the_tiny_model_reads_chats(tmp_path: Path) -> None:
    tokenizer = SampleTokenizer.load(tiny_llama(tmp_path))

    assert (tokenizer.eos_token_id, tokenizer.context) == (2, 1024)
