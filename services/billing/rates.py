"""Reads the file of prices with which an installation begins."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError

from lehr.errors import InvalidArgument
from lehr.money import Money
from services.billing.domain.errors import RatesRefused

#: An installed package carries the file beside this module, a checkout in deploy/.
PLACES = (
    Path(__file__).with_name("rates.yaml"),
    Path(__file__).parents[2] / "deploy" / "rates.yaml",
)

PRICE_MAX = 10**12
"""A million an hour in micros; more is a slip of the pen."""

_TIER_NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"

TierName = Annotated[str, Field(pattern=_TIER_NAME)]


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    currency: str = Field(pattern=r"^[A-Z]{3}$")
    # Text, because YAML would read 0.1 as the nearest binary number.
    per_gpu_hour: dict[TierName, StrictStr] = Field(min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Prices of one GPU for one hour, in micros, by tier."""

    currency: str
    prices: Mapping[str, int]


def is_tier_name(value: str) -> bool:
    """Return whether a tier may be called so: 1 to 63 lower-case letters, digits and dashes."""
    return re.fullmatch(_TIER_NAME, value) is not None


def default_file() -> Path:
    """Return the file that came with this installation."""
    return next((place for place in PLACES if place.is_file()), PLACES[-1])


def read(file: Path) -> Rates:
    """Return the prices of the file.

    Raises:
        RatesRefused: no such file, not YAML, or with a price that is none.
    """
    try:
        found = _File.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
        prices = {
            tier: Money.parse(amount, currency=found.currency, field=f"per_gpu_hour.{tier}").micros
            for tier, amount in found.per_gpu_hour.items()
        }
    except (OSError, yaml.YAMLError, ValidationError, InvalidArgument) as problem:
        raise RatesRefused(f"the prices in {file} cannot be used: {problem}", file=file) from None
    if wrong := [tier for tier, micros in prices.items() if not 0 <= micros <= PRICE_MAX]:
        raise RatesRefused(
            f"the prices of {', '.join(wrong)} in {file} must be from 0 to 1000000", file=file
        )
    return Rates(currency=found.currency, prices=prices)
