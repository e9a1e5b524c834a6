"""What a person may set about billing."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import SettingsConfigDict

from lehr.settings import ServiceSettings


def _from_text(value: object) -> object:
    """Take a bare number as seconds."""
    if isinstance(value, str):
        try:
            return timedelta(seconds=float(value))
        except ValueError:
            return value
    return value


Seconds = Annotated[timedelta, BeforeValidator(_from_text)]


class Settings(ServiceSettings):
    """Environment prefix ``BILLING_``; durations are numbers of seconds."""

    model_config = SettingsConfigDict(env_prefix="BILLING_", frozen=True, hide_input_in_errors=True)

    rates_file: Path | None = None
    """Prices published at the first start; None is the file that came with the installation."""

    currency: str = Field(default="EUR", pattern=r"^[A-Z]{3}$")
    """Currency of all prices and accounts; an installation keeps its first."""

    starting_credit: Decimal = Field(
        default=Decimal("1000.00"), ge=0, le=10**9, decimal_places=6, allow_inf_nan=False
    )
    """Credit that a tenant begins with, in units of the currency."""

    charge_interval: Seconds = Field(
        default=timedelta(seconds=30), ge=timedelta(milliseconds=100), le=timedelta(hours=1)
    )
    """How often running leases are charged up to their last proof of life."""

    sweep_interval: Seconds = Field(
        default=timedelta(seconds=60), ge=timedelta(milliseconds=100), le=timedelta(hours=1)
    )
    """How often the owners of leases and jobs are asked for what no event told."""

    hold_timeout: Seconds = Field(
        default=timedelta(minutes=10), ge=timedelta(seconds=1), le=timedelta(days=1)
    )
    """Age at which a hold flows back that no job of the scheduler needs."""

    reconcile_interval: Seconds = Field(
        default=timedelta(hours=1), ge=timedelta(seconds=1), le=timedelta(days=1)
    )
    """How often the ledger is compared with the leases."""

    reconcile_pause: Seconds = Field(
        default=timedelta(milliseconds=700), ge=timedelta(), le=timedelta(seconds=3)
    )
    """Between two looks at a difference, which counts when three find it."""
