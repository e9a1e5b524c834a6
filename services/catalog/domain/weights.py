"""Headers of safetensors files: how many parameters, and nothing that lies outside the file.

The format: eight bytes little-endian length, that many bytes of JSON, then the tensors
(safetensors documentation, "Format").
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from services.catalog.domain.errors import ModelRefused

LENGTH_BYTES = 8
HEADER_BYTES_MAX = 16 * 2**20
"""Longest header that is read; the format allows more, no file of 5 GiB needs it."""

#: Bits of one element (safetensors, enum Dtype).
_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a weights file announces."""

    parameter_count: int
    tensor_count: int


def header_bytes(start: bytes, *, name: str, file_bytes: int) -> int:
    """Return how many bytes of header follow the first eight bytes of a file.

    Raises:
        ModelRefused: more than the file holds.
    """
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if len(start) < LENGTH_BYTES or not 2 <= length <= min(
        HEADER_BYTES_MAX, file_bytes - LENGTH_BYTES
    ):
        raise ModelRefused(name, "is no safetensors file: its header has an impossible length")
    return length


def read_header(body: bytes, *, name: str, file_bytes: int) -> Header:
    """Check a header and count parameters.

    Raises:
        ModelRefused: not JSON, no tensors, or they overlap, leave gaps, lie outside the file or
            have another size than their shape says.
    """
    try:
        entries = json.loads(body.decode())
        tensors = [_tensor(value) for key, value in entries.items() if key != "__metadata__"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ModelRefused(name, "is no safetensors file: its header cannot be read") from None
    if not tensors:
        raise ModelRefused(name, "holds no tensors")
    end = 0
    for tensor in sorted(tensors, key=lambda one: (one.first, one.after)):
        if tensor.first != end or tensor.after < tensor.first:
            raise ModelRefused(name, "has tensors that overlap or leave gaps")
        if tensor.count * tensor.bits != 8 * (tensor.after - tensor.first):
            raise ModelRefused(name, "has a tensor of another size than its shape says")
        end = tensor.after
    if end != file_bytes - LENGTH_BYTES - len(body):
        raise ModelRefused(name, "is cut short or longer than its tensors")
    return Header(
        parameter_count=sum(tensor.count for tensor in tensors), tensor_count=len(tensors)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    first: int
    after: int
    count: int
    bits: int


def _tensor(value: Any) -> _Tensor:
    first, after = map(_whole, value["data_offsets"])
    count = math.prod(map(_whole, value["shape"]))
    return _Tensor(first=first, after=after, count=count, bits=_BITS[value["dtype"]])


def _whole(value: Any) -> int:
    # JSON has 1.0 and true, which Python counts as numbers too.
    if type(value) is not int or value < 0:
        raise ValueError("no count")
    return value
