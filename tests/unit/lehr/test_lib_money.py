"""Money is exact, and rounded once."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.errors import InvalidArgument
from lehr.money import Money, cost_micros

micros = st.integers(min_value=-(10**15), max_value=10**15)
amounts = micros.map(lambda value: Money("USD", value))
seconds = st.integers(min_value=0, max_value=10**8)
gpus = st.integers(min_value=0, max_value=1024)
prices = st.integers(min_value=0, max_value=10**9)


@given(seconds, gpus, prices)
def test_a_cost_is_the_exact_price_rounded_down(seconds: int, gpus: int, price: int) -> None:
    exact = Fraction(seconds * gpus * price, 3600)

    assert 0 <= exact - cost_micros(seconds, gpus, price) < 1


@given(seconds, seconds, gpus, prices)
def test_a_longer_run_never_costs_less(first: int, second: int, gpus: int, price: int) -> None:
    shorter, longer = sorted([first, second])

    assert cost_micros(shorter, gpus, price) <= cost_micros(longer, gpus, price)


@given(seconds, seconds, gpus, prices)
def test_parts_never_cost_more_than_the_whole(
    first: int, second: int, gpus: int, price: int
) -> None:
    parts = cost_micros(first, gpus, price) + cost_micros(second, gpus, price)

    assert 0 <= cost_micros(first + second, gpus, price) - parts <= 1


def test_an_hour_of_two_gpus_costs_twice_the_price() -> None:
    assert cost_micros(3600, 2, 2_500_000) == 5_000_000


def test_a_second_of_a_cheap_gpu_is_rounded_down() -> None:
    assert cost_micros(1, 1, 3599) == 0


@pytest.mark.parametrize("wrong", [(-1, 1, 1), (1, -1, 1), (1, 1, -1)])
def test_a_negative_measure_is_our_mistake(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="cannot price"):
        cost_micros(*wrong)


@given(amounts)
def test_what_is_written_is_read_back(amount: Money) -> None:
    written = str(amount).removesuffix(" USD")

    assert Money.parse(written, currency="USD") == amount


@given(amounts, amounts)
def test_sums_can_be_taken_apart(first: Money, second: Money) -> None:
    assert first + second - second == first
    assert first + -first == Money.zero("USD")


@given(amounts, st.integers(min_value=0, max_value=20))
def test_times_is_repeated_addition(amount: Money, factor: int) -> None:
    assert amount.times(factor) == sum([amount] * factor, start=Money.zero("USD"))


@given(amounts, amounts)
def test_amounts_are_ordered_as_their_decimals(first: Money, second: Money) -> None:
    assert (first < second) == (first.decimal < second.decimal)
    assert (first >= second) == (first.decimal >= second.decimal)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00 USD"),
        (1, "0.000001 USD"),
        (12_500_000, "12.50 USD"),
        (-1_234_567, "-1.234567 USD"),
        (1_000_000_000_000_000, "1000000000.00 USD"),
    ],
)
def test_an_amount_is_written_exactly(value: int, text: str) -> None:
    assert str(Money("USD", value)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "NaN",
        "Infinity",
        "0.0000001",
        "1e400",
        "9223372036854.775808",
        "0." + "9" * 90,
        "1e999999999",
    ],
)
def test_an_amount_that_would_have_to_be_rounded_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Money.parse(text, currency="USD", field="max_cost")

    assert [violation.field for violation in caught.value.fields] == ["max_cost"]


def test_a_decimal_is_read_as_it_is() -> None:
    assert Money.parse(Decimal("0.10"), currency="EUR") == Money("EUR", 100_000)


def test_currencies_do_not_mix() -> None:
    with pytest.raises(ValueError, match="different currencies"):
        Money("USD", 1) + Money("EUR", 1)
    with pytest.raises(ValueError, match="different currencies"):
        sorted([Money("USD", 1), Money("EUR", 1)])


def test_an_amount_fits_into_a_column() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        Money("USD", 2**63 - 1).times(2)


def test_a_currency_is_three_capital_letters() -> None:
    with pytest.raises(ValueError, match="currency code"):
        Money("usd", 1)
