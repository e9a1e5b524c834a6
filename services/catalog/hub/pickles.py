"""Weights from a pickle that an administrator allowed, read without running anything in it."""

import contextlib
import json
import pickle
from pathlib import Path
from typing import Any

from services.catalog.domain.choosing import safe_name
from services.catalog.domain.imports import ImportRefused, SourceCorrupt


def load_reader() -> None:
    """Import torch before the process is guarded: with CUDA, it asks ``ldconfig`` for libraries."""
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401, PLC0415 - large, and only pickles need it.


def to_safetensors(path: Path) -> Path:
    """Write the tensors of a pickle, or the index of several, as safetensors beside it.

    Raises:
        ImportRefused: it holds anything but tensors, or torch is not installed here.
        SourceCorrupt: an index cannot be read.
    """
    target = path.with_name(f"{path.name}.safe")
    if path.suffix == ".json":
        target.write_text(json.dumps(_index(path)))
        return target
    try:
        import torch  # noqa: PLC0415 - large, and only pickles need it.
        from safetensors.torch import save_file  # noqa: PLC0415
    except ImportError:
        raise ImportRefused(
            path.name, "is a pickle, and the package `torch` that reads it is not installed here"
        ) from None
    try:
        # Without weights_only, loading would run whatever the file says.
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ImportRefused(path.name, f"is no pickle of plain weights ({_short(error)})") from None
    if not isinstance(found, dict) or not all(torch.is_tensor(one) for one in found.values()):
        raise ImportRefused(path.name, "holds more than weights by name")
    # Tensors that share memory cannot be written as such.
    tensors = {str(name): tensor.clone().contiguous() for name, tensor in found.items()}
    save_file(tensors, target, metadata={"format": "pt"})
    return target


def _index(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
        found["weight_map"] = {name: safe_name(file) for name, file in found["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SourceCorrupt(f"{path.name} is no index of weights") from None
    return dict(found)


def _short(error: Exception) -> str:
    return type(error).__name__
