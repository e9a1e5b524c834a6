"""Cutting text into pieces: every line and element once, wherever the pieces end."""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.catalog.formats import elements, lines, records
from services.catalog.formats.elements import split_elements
from services.catalog.formats.errors import Broken
from services.catalog.formats.lines import split_lines
from services.catalog.formats.records import split_records
from services.catalog.formats.source import Fault

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=4)


class Drip:
    """A stream that is read in blocks of a few bytes, whatever is asked for."""

    position = 0

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def read(self, size: int) -> bytes:
        """Return the next block."""
        return self._data.read(size)


@pytest.fixture(params=[1, 2, 3, 7, 64], autouse=True)
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Cut text after very few bytes."""
    for module in (elements, lines, records):
        monkeypatch.setattr(module, "CHUNK_BYTES", request.param)
    return request.param


def found(pieces: Iterator[Any]) -> list[tuple[int, Any]]:
    """Return all rows of all pieces."""
    return [row for piece in pieces for row in piece.rows()]


@settings(max_examples=40)
@given(st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=20)))
def test_every_line_is_found_once_with_its_number(texts: list[str]) -> None:
    raw = "\n".join(texts).encode()

    rows = found(split_lines(Drip(raw)))

    stripped = [(number, text.strip()) for number, text in enumerate(texts, start=1)]
    assert rows == [
        (number, text.removeprefix("\ufeff").strip() if number == 1 else text)
        for number, text in stripped
        if (text.removeprefix("\ufeff").strip() if number == 1 else text)
    ]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 40), max_size=12), st.sampled_from([b"\n", b"\r\n"]))
def test_long_lines_are_told_and_swallow_no_other(sizes: list[int], end: bytes) -> None:
    raw = b"".join(b"x" * size + end for size in sizes)

    rows = found(split_lines(Drip(raw), row_bytes_max=20))

    told = [(number, not isinstance(row, Fault)) for number, row in rows]
    fits = 20 - len(end) + 1
    assert told == [(at, size <= fits) for at, size in enumerate(sizes, start=1) if size]


@settings(max_examples=40)
@given(st.lists(OBJECTS, max_size=6), st.sampled_from([None, 2]), st.booleans())
def test_every_element_is_found_once(rows: list[Any], indent: int | None, ascii_only: bool) -> None:
    raw = json.dumps(rows, indent=indent, ensure_ascii=ascii_only).encode()

    pieces = found(split_elements(Drip(raw)))

    assert [(number, json.loads(text)) for number, text in pieces] == list(enumerate(rows, 1))


@settings(max_examples=40)
@given(st.lists(OBJECTS, min_size=1, max_size=4), OBJECTS)
def test_the_one_list_of_objects_is_found_among_other_keys(rows: list[Any], other: Any) -> None:
    raw = json.dumps({"tags": ["a"], "other": other, "rows": rows, "more": [[{}]]}).encode()

    pieces = found(split_elements(Drip(raw)))

    assert [json.loads(text) for _, text in pieces] == rows


@settings(max_examples=40)
@given(st.lists(OBJECTS, max_size=4), st.data())
def test_a_list_that_is_cut_off_is_broken_at_its_end(rows: list[Any], data: st.DataObject) -> None:
    raw = json.dumps(rows).encode()
    cut = data.draw(st.integers(1, len(raw) - 1))

    with pytest.raises(Broken) as broken:
        found(split_elements(Drip(raw[:cut])))

    assert broken.value.what.endswith(f"at byte {cut + 1}")


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(0, 3))
def test_a_long_element_is_told_and_swallows_no_other(size: int, before: int) -> None:
    rows = [{"a": 1}] * before + [{"a": "x" * size}] + [{"b": 2}]

    pieces = found(split_elements(Drip(json.dumps(rows).encode()), row_bytes_max=30))

    told = [not isinstance(row, Fault) for _, row in pieces]
    assert told == [True] * before + [len(json.dumps(rows[before])) <= 30, True]


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(
            st.text(st.characters(exclude_characters="\0\r", codec="utf-8"), max_size=9),
            min_size=2,
            max_size=2,
        ),
        max_size=6,
    ),
    st.sampled_from([",", "\t"]),
)
def test_every_record_is_found_once(rows: list[list[str]], delimiter: str) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *rows])

    pieces = found(split_records(Drip(out.getvalue().encode()), delimiter=delimiter))

    assert [(number, list(row.values())) for number, row in pieces] == list(
        enumerate(rows, start=1)
    )
