"""Stored secrets are encrypted and open in their own place alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from lehr.errors import PlatformError
from services.catalog.settings import _key
from services.catalog.vault import Vault

KEY = "ab" * 32
PLACE = ("acme", "default", "token")
SECRET = {"token": "hf_TESTtestTESTtestTESTtest12345678"}

words = st.text(min_size=1, max_size=20)


def test_a_secret_opens_again_and_is_not_seen_when_sealed() -> None:
    sealed = Vault(KEY).seal(PLACE, SECRET)
    assert Vault(KEY).open(PLACE, sealed) == SECRET
    assert b"TESTtest" not in sealed
    assert Vault(KEY).seal(PLACE, SECRET) != sealed


@given(place=st.tuples(words, words, words))
def test_a_secret_opens_in_no_other_place(place: tuple[str, str, str]) -> None:
    sealed = Vault(KEY).seal(PLACE, SECRET)
    if place != PLACE:
        with pytest.raises(PlatformError, match="store it again"):
            Vault(KEY).open(place, sealed)


def test_places_that_read_alike_are_not_one() -> None:
    sealed = Vault(KEY).seal(("a", "bc", "d"), SECRET)
    with pytest.raises(PlatformError):
        Vault(KEY).open(("ab", "c", "d"), sealed)


@pytest.mark.parametrize("at", [0, 5, 12, 20, -1])
def test_a_changed_secret_does_not_open(at: int) -> None:
    sealed = bytearray(Vault(KEY).seal(PLACE, SECRET))
    sealed[at] ^= 1
    with pytest.raises(PlatformError, match="store it again"):
        Vault(KEY).open(PLACE, bytes(sealed))


def test_another_key_opens_nothing() -> None:
    with pytest.raises(PlatformError, match="key was changed"):
        Vault("cd" * 32).open(PLACE, Vault(KEY).seal(PLACE, SECRET))


def test_without_a_key_nothing_is_kept() -> None:
    for attempt in (
        lambda: Vault("").seal(PLACE, SECRET),
        lambda: Vault("").open(PLACE, b"x" * 40),
    ):
        with pytest.raises(PlatformError, match="CATALOG_SECRET_KEY"):
            attempt()


@pytest.mark.parametrize("key", ["ab", "zz" * 32, "ab" * 16, "ab" * 33])
def test_a_key_of_another_form_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ValueError, match="64 hex digits") as refused:
        _key(SecretStr(key))
    assert key not in str(refused.value)
