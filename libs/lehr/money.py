"""Money as whole millionths of a currency unit: exact, and rounded once."""

import re
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Self

from lehr.errors import FieldViolation, InvalidArgument

MICROS = 1_000_000
"""Micros of one unit of a currency."""

SECONDS_OF_HOUR = 3600

_CURRENCY = re.compile(r"[A-Z]{3}")
# What a bigint column holds.
_LARGEST = 2**63 - 1
# More digits than any amount has; a longer number is refused instead of rounded.
_EXACT = Context(prec=60, traps=[Inexact, InvalidOperation, Overflow])


def cost_micros(seconds: int, gpus: int, micro_per_hour: int) -> int:
    """Price whole seconds of GPUs in micros, rounded down once.

    ``micro_per_hour`` is the price of one GPU for one hour. Rounding down means that no one pays
    for a part of a micro; it happens on the whole, never on the parts.
    """
    if min(seconds, gpus, micro_per_hour) < 0:
        raise ValueError(f"cannot price {seconds} s of {gpus} GPUs at {micro_per_hour} an hour")
    return seconds * gpus * micro_per_hour // SECONDS_OF_HOUR


@dataclass(frozen=True, slots=True)
class Money:
    """An amount of one currency, negative for what flows back."""

    currency: str
    """ISO 4217 code, such as USD."""

    micros: int
    """Millionths of the unit."""

    def __post_init__(self) -> None:
        if not _CURRENCY.fullmatch(self.currency):
            raise ValueError(f"{self.currency!r} is not a currency code of three capital letters")
        if abs(self.micros) > _LARGEST:
            raise ValueError(f"{self.micros} micros do not fit into 64 bits")

    @classmethod
    def zero(cls, currency: str) -> Self:
        """Return nothing, in a currency."""
        return cls(currency=currency, micros=0)

    @classmethod
    def parse(cls, amount: str | Decimal, *, currency: str, field: str = "amount") -> Self:
        """Read a person's decimal amount, such as ``"12.50"``, without rounding it.

        Raises:
            InvalidArgument: not a number, too large, or finer than a micro.
        """
        try:
            micros = _EXACT.multiply(_EXACT.create_decimal(amount), MICROS)
            fits = micros.is_finite() and abs(micros) <= _LARGEST and micros % 1 == 0
        except ArithmeticError:
            fits = False
        if not fits:
            rule = "must be a decimal number with at most six digits after the point"
            raise InvalidArgument(
                f"{field} is {str(amount)[:40]!r}: it {rule}",
                reason="AMOUNT_MALFORMED",
                fields=[FieldViolation(field=field, description=rule)],
                amount=str(amount)[:40],
            )
        return cls(currency=currency, micros=int(micros))

    @property
    def decimal(self) -> Decimal:
        """The amount in units, exact, with six digits after the point."""
        return Decimal(self.micros).scaleb(-6)

    def times(self, factor: int) -> Self:
        """Return the amount ``factor`` times."""
        return self._of(self.micros * factor)

    def _of(self, micros: int) -> Self:
        return type(self)(currency=self.currency, micros=micros)

    def _micros_of(self, other: "Money") -> int:
        if other.currency != self.currency:
            raise ValueError(f"{self} and {other} are of different currencies")
        return other.micros

    def __add__(self, other: "Money") -> Self:
        return self._of(self.micros + self._micros_of(other))

    def __sub__(self, other: "Money") -> Self:
        return self._of(self.micros - self._micros_of(other))

    def __neg__(self) -> Self:
        return self._of(-self.micros)

    def __lt__(self, other: "Money") -> bool:
        return self.micros < self._micros_of(other)

    def __le__(self, other: "Money") -> bool:
        return self.micros <= self._micros_of(other)

    def __gt__(self, other: "Money") -> bool:
        return self.micros > self._micros_of(other)

    def __ge__(self, other: "Money") -> bool:
        return self.micros >= self._micros_of(other)

    def __str__(self) -> str:
        """Return the exact amount with at least two digits after the point: ``12.50 USD``."""
        units, _, fraction = f"{self.decimal:.6f}".partition(".")
        return f"{units}.{fraction.rstrip('0').ljust(2, '0')} {self.currency}"
