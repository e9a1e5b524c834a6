"""Money and durations as people type them."""

from __future__ import annotations

import re
from datetime import timedelta

from lehr.errors import InvalidArgument
from lehr.money import Money

_MONEY = re.compile(r"(?P<amount>[0-9.,+eE-]+)\s*(?P<currency>[A-Za-z]{3})")
_DURATION = re.compile(r"([0-9]{1,6})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def read_money(text: str, *, field: str = "max_cost") -> Money:
    """Read an amount above zero with its currency, such as ``5.00 EUR``.

    Raises:
        InvalidArgument: it is not one.
    """
    flag = f"--{field.replace('_', '-')}" if field == "max_cost" else field
    found = _MONEY.fullmatch(text.strip())
    if found is None:
        raise InvalidArgument(f'{flag} is {text[:40]!r}; give amount and currency: "5.00 EUR"')
    value = Money.parse(found["amount"], currency=found["currency"].upper(), field=field)
    if value.micros <= 0:
        raise InvalidArgument(f"{flag} is {value}; give an amount above zero")
    return value


def read_duration(text: str, *, field: str = "max_duration") -> timedelta:
    """Read a duration above zero such as ``90s``, ``30m``, ``2h`` or ``1d``.

    Raises:
        InvalidArgument: it is not one.
    """
    found = _DURATION.fullmatch(text.strip())
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if seconds == 0:
        flag = f"--{field.replace('_', '-')}"
        raise InvalidArgument(f"{flag} is {text[:40]!r}; write 90s, 30m, 2h or 1d")
    return timedelta(seconds=seconds)
