"""Text that Postgres, JSON and gRPC can hold, whatever it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.text import shortened, storable

#: Every code point, lone surrogates too.
ANYTHING = st.text(st.characters(codec=None, categories=None))


def test_only_a_nul_and_half_a_surrogate_pair_are_changed() -> None:
    assert storable("a\0b \ud800 \udfff") == "a\\x00b \\ud800 \\udfff"
    assert storable("a\\x00b\x01\u00e9\U0001f600") == "a\\x00b\x01\u00e9\U0001f600"


@given(ANYTHING)
def test_what_is_storable_is_utf_8_without_nul(text: str) -> None:
    assert b"\0" not in storable(text).encode()


@given(ANYTHING, st.integers(3, 40))
def test_what_was_shortened_fits_and_says_so(text: str, bytes_max: int) -> None:
    found = shortened(text, bytes_max=bytes_max)

    assert len(found.encode()) <= bytes_max
    assert found == storable(text) or found.endswith("...")


def test_text_that_just_fits_is_kept_and_storable() -> None:
    assert shortened("abcd", bytes_max=4) == "abcd"
    assert shortened("abcde", bytes_max=4) == "a..."
    assert shortened("a\0", bytes_max=5) == "a\\x00"
    assert shortened("\ud800", bytes_max=6) == "\\ud800"


@pytest.mark.parametrize("bytes_max", [6, 7])
def test_no_character_is_cut_in_two(bytes_max: int) -> None:
    assert shortened("ab\u20ac\u20ac\u20ac", bytes_max=bytes_max) == "ab..."
