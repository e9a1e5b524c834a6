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
HEADERS_BYTES_MAX = 64 * 2**20
"""Longest headers of one model together; a mixture of 100,000 tensors has 15 MB."""
NAME_CHARACTERS_MAX = 500

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

    tensors: tuple["Tensor", ...]

    @property
    def parameter_count(self) -> int:
        """Elements of all tensors."""
        return sum(tensor.count for tensor in self.tensors)


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
        tensors = [_tensor(key, value) for key, value in entries.items() if key != "__metadata__"]
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
    return Header(tensors=tuple(tensors))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor as a header announces it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """In the words of safetensors, for example BF16."""
    first: int = 0
    after: int = 0

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return _BITS[self.dtype]


def _tensor(name: str, value: Any) -> Tensor:
    if len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
        raise ValueError("no name")
    first, after = map(_whole, value["data_offsets"])
    shape, dtype = tuple(map(_whole, value["shape"])), value["dtype"]
    if dtype not in _BITS:
        raise ValueError("no dtype")
    return Tensor(name=name, shape=shape, dtype=dtype, first=first, after=after)


def _whole(value: Any) -> int:
    # JSON has 1.0 and true, which Python counts as numbers too.
    if type(value) is not int or value < 0:
        raise ValueError("no count")
    return value
