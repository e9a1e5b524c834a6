"""Money and durations as people type them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.cli.amounts import read_duration, read_money
from lehr.errors import InvalidArgument
from lehr.money import Money


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("5 EUR", 5_000_000),
        ("5.00 EUR", 5_000_000),
        ("0.000001 EUR", 1),
        ("5.00eur", 5_000_000),
        ("  5.00   Eur ", 5_000_000),
        ("1e3 EUR", 1_000_000_000),
    ],
)
def test_an_amount_is_read_exactly(text: str, micros: int) -> None:
    assert read_money(text) == Money("EUR", micros)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "EUR",
        "EUR 5",
        "5 EURO",
        "5 \u20ac",
        "5 \xc4\xd6\xdc",
        "5 \ufb00x",
        "0 EUR",
        "-5 EUR",
        "nan EUR",
        "inf EUR",
        "1,50 EUR",
        "0.0000001 EUR",
        "1e99 EUR",
        "--5 EUR",
        "5 EUR 6 USD",
        "\u0665 EUR",
    ],
)
def test_what_is_no_amount_is_refused_by_its_option(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"max.cost"):
        read_money(text)


@given(st.text(max_size=12))
def test_no_text_whatever_crashes_the_reading_of_money(text: str) -> None:
    try:
        found = read_money(text).micros
    except InvalidArgument:
        found = 1

    assert found > 0


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        (" 024h ", timedelta(days=1)),
        ("999999d", timedelta(days=999_999)),
    ],
)
def test_a_duration_is_read(text: str, wanted: timedelta) -> None:
    assert read_duration(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "s", "0s", "000m", "5", "5 h", "-5h", "1.5h", "5w", "\xb2s", "\u0665s", "9999999d", "5hs"],
)
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidArgument, match="write 90s, 30m, 2h or 1d"):
        read_duration(text)


@given(st.text(max_size=8))
def test_no_text_whatever_crashes_the_reading_of_a_duration(text: str) -> None:
    try:
        found = read_duration(text)
    except InvalidArgument:
        found = timedelta(1)

    assert found > timedelta(0)
