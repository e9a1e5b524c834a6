"""A GGUF file as a model folder, for as long as it is uploaded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lehr.client.transfer import describe
from lehr.errors import FailedPrecondition, InvalidArgument

_MAGIC = b"GGUF"
#: What is taken from the folder of the original tokenizer.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


class GgufInvalid(InvalidArgument):
    """A file cannot be unpacked."""

    reason = "GGUF_INVALID"


class TrainExtraMissing(FailedPrecondition):
    """What unpacks GGUF files is not installed."""

    reason = "TRAIN_EXTRA_MISSING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """A model folder made from a GGUF file."""

    folder: Path
    origin: str
    """Name and SHA-256 of the file."""
    warning: str
    """What a person should know of its tokenizer; empty for nothing."""


@contextmanager
def unpacked(file: Path, tokenizer: Path | None) -> Iterator[Unpacked]:
    """Give a model folder made from a GGUF file while the block lasts.

    ``tokenizer`` is a folder with the tokenizer that the model was trained with; None rebuilds it
    from the file. The same file gives the same bytes, so an upload can be gone on with.

    Raises:
        GgufInvalid: it is no GGUF file, or of a kind that transformers cannot read.
        TrainExtraMissing: transformers is not installed here.
    """
    with file.open("rb") as opened:
        if opened.read(len(_MAGIC)) != _MAGIC:
            raise GgufInvalid(f"{file} is no GGUF file; give one, or the folder of a model")
    if any(find_spec(name) is None for name in ("torch", "transformers", "gguf")):
        raise TrainExtraMissing(
            "unpacking a GGUF file needs the extra train: install lehr[train], or give a folder"
            " with the model as safetensors"
        )
    digest = describe(file).sha256
    with tempfile.TemporaryDirectory(prefix="lehr-gguf-") as place:
        folder = Path(place) / "model"
        splits = _unpack(file, folder)
        if tokenizer is not None:
            _exchange_tokenizer(tokenizer, folder)
        yield Unpacked(
            folder=folder,
            origin=f"{_plain(file.name)} sha256:{digest}",
            warning="" if tokenizer is not None else _warning(splits),
        )


def _unpack(file: Path, folder: Path) -> str:
    """Run the trainer's unpacking in a process of its own: torch is not for a CLI."""
    done = subprocess.run(
        [sys.executable, "-m", "services.trainer_runner.trainer.from_gguf", file, folder],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if done.returncode != 0:
        why = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise GgufInvalid(f"{file} cannot be unpacked: {why[0][:500]}")
    return done.stdout.splitlines()[-1]


def _exchange_tokenizer(source: Path, folder: Path) -> None:
    if not (source / "tokenizer.json").is_file():
        raise InvalidArgument(f"{source} has no tokenizer.json; give the original model's folder")
    for name in _TOKENIZER_FILES:
        (folder / name).unlink(missing_ok=True)
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _warning(splits: str) -> str:
    return (
        f"the tokenizer was rebuilt from the file, which splits text as {splits!r} does; spaces and"
        " digits may be split otherwise than the model was taught: where you have the original"
        " tokenizer, give its folder with --tokenizer"
    )


def _plain(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:200]
