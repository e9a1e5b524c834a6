"""Write safetensors without torch, in bfloat16."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def to_bfloat16(values: Floats) -> NDArray[np.uint16]:
    """Return the upper halves of finite float32 values, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded: NDArray[np.uint16] = ((bits + half) >> np.uint32(16)).astype("<u2")
    return rounded


def save_bfloat16(tensors: Mapping[str, Floats], path: Path) -> None:
    """Write tensors under their names, as transformers reads them.

    The file is eight bytes of length, a JSON header padded to eight bytes, and the values
    (https://huggingface.co/docs/safetensors, "Format").
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in sorted(tensors):
        end = offset + 2 * tensors[name].size
        shape = list(tensors[name].shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(told)) + told)
        for name in sorted(tensors):
            file.write(to_bfloat16(tensors[name]).tobytes())
