"""A reward for the right number, however the completion gets there."""

from __future__ import annotations

import re
from collections import deque
from decimal import Context, Decimal
from typing import Literal

from lehr.training.rewards.base import ComparingReward, Scored, Unscorable
from lehr.training.section import NotNegative

#: Digits with or without commas between thousands, then a fraction and an exponent. No part can
#: match in two ways, so the time is linear.
_NUMBER = re.compile(
    r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,4})?",
    re.ASCII,
)
#: Differences of numbers far apart are rounded; nothing is signalled.
_CONTEXT = Context(prec=60, traps=[])


class NumericReward(ComparingReward):
    """1 where the last number of the completion is that of the reference, within a tolerance."""

    type: Literal["numeric"] = "numeric"
    tolerance: NotNegative = 0.0
    """Largest difference that still counts as equal."""
    relative_tolerance: NotNegative = 0.0
    """The same as a share of the reference's size; the larger of both holds."""

    def score(self, scored: Scored) -> float:
        """Return 1 or 0; a reference without a number is an error, a completion is just wrong."""
        looked_at, reference = map(last_number, self.sides(scored))
        if reference is None:
            raise Unscorable("REFERENCE_HAS_NO_NUMBER", "the reference holds no number")
        if looked_at is None:
            return 0.0
        allowed = max(
            Decimal(self.tolerance),
            _CONTEXT.multiply(Decimal(self.relative_tolerance), abs(reference)),
        )
        return float(abs(_CONTEXT.subtract(looked_at, reference)) <= allowed)


def last_number(text: str) -> Decimal | None:
    """Return the last decimal number of a text, such as -1,234.5 or 6e3; None without one.

    A sign counts only where nothing is written before it: 3-2 ends with 2.
    """
    last = deque(_NUMBER.finditer(text), maxlen=1)
    if not last:
        return None
    found = last[0]
    told = found.group().replace(",", "")
    if told[0] in "+-" and found.start() and text[found.start() - 1].isalnum():
        told = told[1:]
    return Decimal(told)
