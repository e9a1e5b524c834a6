"""Headers of safetensors files: whatever is not exactly a file of tensors is refused, by name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.catalog.domain.errors import ModelRefused
from services.catalog.domain.weights import (
    HEADER_BYTES_MAX,
    LENGTH_BYTES,
    Header,
    header_bytes,
    read_header,
)

SIZES = {"F32": 4, "BF16": 2, "U8": 1, "I64": 8}


def a_tensor(first: int, after: int, *, dtype: str = "U8", shape: Any = None) -> dict[str, Any]:
    """Return an entry of bytes, or of another type and shape."""
    shape = [after - first] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, after]}


def read(entries: Any, *, data_bytes: int) -> Header:
    """Read a header before so many bytes of tensors."""
    body = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return read_header(body, name="w.safetensors", file_bytes=8 + len(body) + data_bytes)


def test_parameters_are_counted_over_all_tensors() -> None:
    entries = {
        "__metadata__": {"format": "pt"},
        "b": a_tensor(24, 40, dtype="BF16", shape=[2, 2, 2]),
        "a": a_tensor(0, 24, dtype="F32", shape=[2, 3]),
        "scalar": a_tensor(40, 48, dtype="I64", shape=[]),
    }

    found = read(entries, data_bytes=48)

    assert found.parameter_count == 15
    assert [(one.name, one.shape, one.dtype) for one in found.tensors] == [
        ("b", (2, 2, 2), "BF16"),
        ("a", (2, 3), "F32"),
        ("scalar", (), "I64"),
    ]


@given(st.lists(st.tuples(st.sampled_from(sorted(SIZES)), st.integers(0, 9)), min_size=1))
def test_every_file_without_gaps_is_read(parts: list[tuple[str, int]]) -> None:
    entries, end = {}, 0
    for at, (dtype, count) in enumerate(parts):
        after = end + SIZES[dtype] * count
        entries[f"t{at}"] = a_tensor(end, after, dtype=dtype, shape=[count])
        end = after

    found = read(entries, data_bytes=end)

    assert found.parameter_count == sum(count for _, count in parts)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(-20, 20).filter(bool))
def test_a_shifted_tensor_overlaps_or_leaves_a_gap(first: int, second: int, shift: int) -> None:
    start = max(0, first + shift)
    entries = {"a": a_tensor(0, first), "b": a_tensor(start, start + second)}

    with pytest.raises(ModelRefused, match=r"w\.safetensors"):
        read(entries, data_bytes=start + second)


@given(st.integers(1, 100), st.integers(-100, 100).filter(bool))
def test_a_file_of_another_length_than_its_tensors_is_refused(size: int, more: int) -> None:
    with pytest.raises(ModelRefused, match="cut short or longer"):
        read({"a": a_tensor(0, size)}, data_bytes=size + more)


@given(st.binary(max_size=200))
def test_no_bytes_whatever_crash_the_reader(body: bytes) -> None:
    with pytest.raises(ModelRefused):
        read(body, data_bytes=5)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=10,
    )
)
def test_no_json_whatever_crashes_the_reader(value: Any) -> None:
    with pytest.raises(ModelRefused):
        read({"a": a_tensor(0, 5), "b": value}, data_bytes=10**6)


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": "U8", "shape": [4]},
        {"dtype": "U8", "data_offsets": [0, 4]},
        {"shape": [4], "data_offsets": [0, 4]},
        a_tensor(0, 4, dtype="PICKLE"),
        a_tensor(0, 4, shape=[-2, -2]),
        a_tensor(0, 4, shape=[4.0]),
        a_tensor(0, 4, shape="4"),
        {"dtype": "U8", "shape": [4], "data_offsets": [0, 4, 4]},
        {"dtype": "U8", "shape": [4], "data_offsets": [False, 4]},
        {"dtype": "U8", "shape": [4], "data_offsets": ["0", "4"]},
    ],
)
def test_a_tensor_that_is_not_described_right_is_refused(tensor: dict[str, Any]) -> None:
    with pytest.raises(ModelRefused, match="cannot be read"):
        read({"a": tensor}, data_bytes=4)


@pytest.mark.parametrize("shape", [[3], [5], [10**30], [2, 3]])
def test_a_shape_of_another_size_than_its_bytes_is_refused(shape: list[int]) -> None:
    with pytest.raises(ModelRefused, match="than its shape says"):
        read({"a": a_tensor(0, 4, shape=shape)}, data_bytes=4)


@pytest.mark.parametrize("entries", [{}, {"__metadata__": {"format": "pt"}}])
def test_a_file_without_tensors_is_refused(entries: dict[str, Any]) -> None:
    with pytest.raises(ModelRefused, match="no tensors"):
        read(entries, data_bytes=0)


def test_a_header_nested_without_end_is_refused() -> None:
    with pytest.raises(ModelRefused, match="cannot be read"):
        read(b'{"a":' + b"[" * 100_000, data_bytes=0)


@given(st.binary(min_size=0, max_size=7))
def test_a_file_that_ends_in_its_first_eight_bytes_is_refused(start: bytes) -> None:
    with pytest.raises(ModelRefused, match="impossible length"):
        header_bytes(start, name="w", file_bytes=len(start))


@given(st.integers(0, 2**64 - 1), st.integers(8, 10**12))
def test_a_header_is_never_longer_than_its_file_or_the_limit(length: int, file_bytes: int) -> None:
    fits = 2 <= length <= min(HEADER_BYTES_MAX, file_bytes - LENGTH_BYTES)

    try:
        found = header_bytes(length.to_bytes(8, "little"), name="w", file_bytes=file_bytes)
    except ModelRefused:
        found = -1

    assert found == (length if fits else -1)
