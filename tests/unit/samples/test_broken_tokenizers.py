"""A tokenizer that breaks is told in words; its panics never end what uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.samples.rows import TextRow
from lehr.samples.tokens import SampleTokenizer
from tests.support.toy_model import write_toy_model


def change(folder: Path, **parts: Any) -> Path:
    """Write a toy model whose tokenizer has other parts."""
    path = write_toy_model(folder) / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))
    return folder


BROKEN: dict[str, dict[str, Any]] = {
    "no unknown token": {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}},
    "an id beyond 31 bits": {
        "model": {"type": "WordLevel", "vocab": {"a": 2**32 - 1, "?": 1}, "unk_token": "?"},
        "added_tokens": [],
    },
    "pieces of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "a model that is none": {"model": {"type": "WordLevel"}},
}


@pytest.mark.parametrize("parts", BROKEN.values(), ids=BROKEN)
def test_a_broken_tokenizer_is_refused_in_words(tmp_path: Path, parts: dict[str, Any]) -> None:
    folder = change(tmp_path, **parts)

    with pytest.raises(InvalidArgument) as refused:
        SampleTokenizer.load(folder).encode([TextRow(text="aba x")])

    assert refused.value.reason in ("TOKENIZER_BROKEN", "NO_END_TOKEN")
