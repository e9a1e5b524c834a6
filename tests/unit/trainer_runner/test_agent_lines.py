"""Lines survive every border of reads, and nothing in them is left that must not be shown."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer_runner.agent.lines import Lines
from services.trainer_runner.agent.masking import Masker, secrets_of

SECRET = "s3cr3t/with+odd=signs & more"
TEXT = "ascii é 漢字 \U0001f600 end\nsecond\n\nlast without newline"


def lines(masker: Masker | None = None, *, limit: int = 64) -> Lines:
    return Lines(masker=masker or Masker([]), limit=limit)


def read(reader: Lines, *chunks: bytes) -> list[str]:
    found = [line for chunk in chunks for line in reader.feed(chunk)]
    return found + reader.close()


@pytest.mark.parametrize("cut", range(len(TEXT.encode()) + 1))
def test_text_is_equal_whatever_the_border(cut: int) -> None:
    data = TEXT.encode()

    assert read(lines(), data[:cut], data[cut:]) == TEXT.split("\n")


@given(st.lists(st.binary(max_size=200)))
def test_borders_change_nothing_in_any_bytes(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)

    assert read(lines(limit=50), *chunks) == read(lines(limit=50), whole)


@given(st.binary(max_size=500))
def test_every_piece_is_bounded(data: bytes) -> None:
    found = read(lines(limit=50), data)

    # A byte that is no UTF-8 is shown as four characters.
    assert all(len(piece.encode()) <= 4 * 50 for piece in found)


@given(st.text(alphabet="aé漢\U0001f600", max_size=300))
def test_a_long_line_is_cut_between_characters(text: str) -> None:
    found = read(lines(limit=16), text.encode())

    assert "".join(found) == text


def test_invalid_bytes_are_escaped_in_their_line_only() -> None:
    found = read(lines(), b"a\xff\xfe\nb\xc3\nc\xc3\xa9\n")

    assert found == [r"a\xff\xfe", r"b\xc3", "cé"]


def test_a_carriage_return_before_the_newline_is_no_text() -> None:
    assert read(lines(), b"one\r\ntwo\rthree\n") == ["one", "two\rthree"]


@pytest.mark.parametrize(
    "printed",
    [
        SECRET.encode(),
        base64.b64encode(SECRET.encode()),
        base64.b64encode(b"x" + SECRET.encode() + b"y"),
        base64.b64encode(b"xy" + SECRET.encode()),
        base64.urlsafe_b64encode(SECRET.encode()),
        quote(SECRET, safe="").encode(),
    ],
)
@pytest.mark.parametrize("cut", [0, 3, 9])
def test_a_secret_is_masked_in_every_form_and_over_borders(printed: bytes, cut: int) -> None:
    masker = Masker([SECRET])

    found = "\n".join(read(lines(masker), b"see " + printed[:cut], printed[cut:] + b" there\n"))

    assert "[masked]" in found
    assert printed[4:-4].decode() not in found


@pytest.mark.parametrize("offset", range(40))
def test_a_secret_across_the_cut_of_a_long_line_is_masked(offset: int) -> None:
    masker = Masker([SECRET])
    data = b"x" * (50 + offset) + SECRET.encode() + b"y" * 200

    found = "".join(read(lines(masker, limit=64), data[:70], data[70:], b"\n"))

    assert SECRET not in found
    assert found.count("[masked]") == 1


@pytest.mark.parametrize(
    "secret",
    [
        "hf_TESTtestTESTtestTESTtest12345678",
        "postgresql://role:passw0rd@host/db",
        "https://s3/x?X-Amz-Signature=abcdef0123456789&a=b",
        "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4IiwiZXhwIjoxfQ.c2lnbmF0dXJl",
        "AKIAABCDEFGHIJKLMNOP",
    ],
)
def test_what_looks_like_a_secret_is_masked(secret: str) -> None:
    (found,) = read(lines(limit=1000), f"see {secret} there\n".encode())

    assert secret not in found
    assert "[masked]" in found


def test_ordinary_text_is_left_alone() -> None:
    text = "loss=1.25 at https://example.org/a?b=c, key value eyJ"

    assert read(lines(limit=1000), text.encode()) == [text]


def test_secrets_are_found_by_the_names_of_variables_and_in_addresses() -> None:
    found = secrets_of(
        {"A_SECRET_KEY": "one-secret", "PATH": "/bin", "URL": "nats://me:two-secret@host:1"}
    )

    assert found == {"one-secret", "two-secret"}


def test_a_hostile_line_costs_little() -> None:
    hostile = b"eyJ-" * 16_000 + b"://:" * 16_000 + b"?token=" * 9000

    read(lines(Masker([SECRET]), limit=64 * 1024), hostile, b"\n")
