"""What a person may set for telemetry."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from lehr.settings import ServiceSettings


class Settings(ServiceSettings):
    """Settings of telemetry; prefix ``TELEMETRY_``; times as ``PT60S``."""

    model_config = SettingsConfigDict(
        env_prefix="TELEMETRY_", frozen=True, hide_input_in_errors=True
    )

    log_gap_patience: Annotated[
        timedelta, Field(ge=timedelta(seconds=1), le=timedelta(hours=24))
    ] = timedelta(seconds=60)
    """How long log lines wait for a missing one before them; it is then shown after them."""
